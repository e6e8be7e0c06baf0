/* AMX tiles: 16 rows of 32 bf16 on the left, 16 pairs of rows of 16 on the right, 16 by 16 float32 sums. */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE = 16, PAIR = 32, BLOCK = 2 * TILE };

/* 1 when the kernel lets this process use AMX tiles. */
int has_tiles(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

typedef struct __attribute__((packed)) {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} tile_config;

static void configure(void) {
    tile_config config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) { config.bytes_a_row[t] = 64; config.rows[t] = 16; }
    _tile_loadconfig(&config);
}

static inline char *aligned(char **work, int64_t bytes) {
    char *at = (char *)(((uintptr_t)*work + 63) & ~(uintptr_t)63);
    *work = at + bytes;
    return at;
}

/* 16 rows of 16 pairs, `stride` bf16 apart, to 16 pairs of 16 rows: a right-hand tile of x^T. Rows from `left` on are 0. */
static inline void turned_tile(uint32_t *to, const bf16 *x, int64_t stride, int64_t left) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = i < left ? _mm512_loadu_si512(x + i * stride) : _mm512_setzero_si512();
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        _mm512_storeu_si512(to + j % 4 * TILE + j / 4 * 4 * TILE, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_si512(to + (8 + j % 4 + j / 4 * 4) * TILE, _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
    }
}

/* Rows of x as right-hand tiles of y x^T: [block of 16 rows][step of 32 dims][16 pairs of dims][16 rows]. */
static void pack_turned(uint32_t *to, const bf16 *x, int64_t stride, int64_t rows, int64_t dims) {
    for (int64_t first = 0; first < rows; first += TILE)
        for (int64_t d = 0; d < dims; d += PAIR, to += TILE * TILE)
            turned_tile(to, x + first * stride + d, stride, rows - first);
}

/* Weights (rows, dims) for `product_bf16` and `vocabulary_max_bf16`; rows and dims are multiples of 32. */
void pack_weights_bf16(uint32_t *to, const bf16 *weights, int64_t rows, int64_t dims) {
    pack_turned(to, weights, dims, rows, dims);
}
#else
int has_tiles(void) { return 0; }
#endif
