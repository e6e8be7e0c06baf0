/* What torch leaves slow between two matrix products of a BERT layer on a CPU, for packed batches, one thread a call.
 *
 * bf16 is carried as uint16_t; all sums are taken in float32. Rows are tokens. Nothing here allocates beyond one work
 * area of the caller's. Attention needs AMX (bf16 tiles); the rest is plain C that the compiler turns into vectors.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float wide(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static inline bf16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bf16)(x != x ? 0x7fc0 : rounded);
}

/* erf(x / sqrt 2): Abramowitz and Stegun 7.1.28, absolute error at most 3e-7. */
static inline float erf_of_half_variance(float x) {
    float a = fabsf(x) * 0.70710678118654752f;
    a = a > 6.0f ? 6.0f : a;
    float p = 1.0f + a * (0.0705230784f + a * (0.0422820123f + a * (0.0092705272f
            + a * (0.0001520143f + a * (0.0002765672f + a * 0.0000430638f)))));
    p *= p; p *= p; p *= p; p *= p;
    return copysignf(1.0f - 1.0f / p, x);
}

static inline float gelu(float x) { return 0.5f * x * (1.0f + erf_of_half_variance(x)); }

/* x (rows, width) <- gelu(x + bias), in place. */
#ifdef __AVX512BF16__
#include <immintrin.h>

static inline __m512 load_bf16(const bf16 *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline void store_bf16(bf16 *p, __m512 x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}

static inline __m512 gelu_of_16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 a = _mm512_min_ps(_mm512_abs_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f))), _mm512_set1_ps(6.0f));
    __m512 p = _mm512_set1_ps(0.0000430638f);
    p = _mm512_fmadd_ps(p, a, _mm512_set1_ps(0.0002765672f));
    p = _mm512_fmadd_ps(p, a, _mm512_set1_ps(0.0001520143f));
    p = _mm512_fmadd_ps(p, a, _mm512_set1_ps(0.0092705272f));
    p = _mm512_fmadd_ps(p, a, _mm512_set1_ps(0.0422820123f));
    p = _mm512_fmadd_ps(p, a, _mm512_set1_ps(0.0705230784f));
    p = _mm512_fmadd_ps(p, a, one);
    p = _mm512_mul_ps(p, p); p = _mm512_mul_ps(p, p); p = _mm512_mul_ps(p, p); p = _mm512_mul_ps(p, p);
    __m512 tail = _mm512_mul_ps(_mm512_rcp14_ps(p), _mm512_set1_ps(0.5f)); /* half of 1 - erf(|x|), 14 bits */
    __mmask16 below = _mm512_movepi32_mask(_mm512_castps_si512(x));
    return _mm512_mul_ps(x, _mm512_mask_mov_ps(_mm512_sub_ps(one, tail), below, tail));
}

void bias_gelu_bf16(bf16 *restrict x, const float *restrict bias, int64_t rows, int64_t width) {
    int64_t whole = width / 16 * 16;
    for (int64_t r = 0; r < rows; r++) {
        bf16 *row = x + r * width;
        for (int64_t i = 0; i < whole; i += 16)
            store_bf16(row + i, gelu_of_16(_mm512_add_ps(load_bf16(row + i), _mm512_loadu_ps(bias + i))));
        for (int64_t i = whole; i < width; i++) row[i] = narrow(gelu(wide(row[i]) + bias[i]));
    }
}
#else
void bias_gelu_bf16(bf16 *restrict x, const float *restrict bias, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) x[r * width + i] = narrow(gelu(wide(x[r * width + i]) + bias[i]));
}
#endif

void bias_gelu_f32(float *restrict x, const float *restrict bias, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) x[r * width + i] = gelu(x[r * width + i] + bias[i]);
}

static inline void normalized(float *restrict row, int64_t width, float eps, float *mean, float *scale) {
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = 0; i < width; i++) sum += row[i];
    *mean = sum / (float)width;
    for (int64_t i = 0; i < width; i++) squares += (row[i] - *mean) * (row[i] - *mean);
    *scale = 1.0f / sqrtf(squares / (float)width + eps);
}

/* residual (rows, width) <- layer_norm(x + bias + residual) * gamma + beta, in place. work: width floats. */
static inline void add_norm_row_bf16(const bf16 *restrict x, const float *restrict bias, bf16 *restrict residual,
                                     const float *restrict gamma, const float *restrict beta, float eps, int64_t width,
                                     float *restrict work) {
    float mean, scale;
    for (int64_t i = 0; i < width; i++) work[i] = wide(x[i]) + bias[i] + wide(residual[i]);
    normalized(work, width, eps, &mean, &scale);
    for (int64_t i = 0; i < width; i++) residual[i] = narrow((work[i] - mean) * scale * gamma[i] + beta[i]);
}

#ifdef __AVX512BF16__
/* The same for a width that is a multiple of 16. */
static inline void add_norm_row_of_16(const bf16 *restrict x, const float *restrict bias, bf16 *restrict residual,
                                      const float *restrict gamma, const float *restrict beta, float eps, int64_t width,
                                      float *restrict work) {
    __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
        __m512 y = _mm512_add_ps(_mm512_add_ps(load_bf16(x + i), _mm512_loadu_ps(bias + i)), load_bf16(residual + i));
        sum = _mm512_add_ps(sum, y);
        _mm512_storeu_ps(work + i, y);
    }
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)width);
    for (int64_t i = 0; i < width; i += 16) {
        __m512 y = _mm512_sub_ps(_mm512_loadu_ps(work + i), mean);
        squares = _mm512_fmadd_ps(y, y, squares);
    }
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + eps));
    for (int64_t i = 0; i < width; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(work + i), mean), scale);
        store_bf16(residual + i, _mm512_fmadd_ps(y, _mm512_loadu_ps(gamma + i), _mm512_loadu_ps(beta + i)));
    }
}
#endif

void add_norm_bf16(const bf16 *restrict x, const float *restrict bias, bf16 *restrict residual,
                   const float *restrict gamma, const float *restrict beta, float eps, int64_t rows, int64_t width,
                   float *restrict work) {
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *from = x + r * width;
        bf16 *to = residual + r * width;
#ifdef __AVX512BF16__
        if (width % 16 == 0) {
            add_norm_row_of_16(from, bias, to, gamma, beta, eps, width, work);
            continue;
        }
#endif
        add_norm_row_bf16(from, bias, to, gamma, beta, eps, width, work);
    }
}

void add_norm_f32(const float *restrict x, const float *restrict bias, float *restrict residual,
                  const float *restrict gamma, const float *restrict beta, float eps, int64_t rows, int64_t width,
                  float *restrict work) {
    float mean, scale;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) work[i] = x[r * width + i] + bias[i] + residual[r * width + i];
        normalized(work, width, eps, &mean, &scale);
        for (int64_t i = 0; i < width; i++)
            residual[r * width + i] = (work[i] - mean) * scale * gamma[i] + beta[i];
    }
}

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE = 16, PAIR = 32 };

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

/* 2^y for y <= 0: 2^n * 2^f, the second factor by a polynomial of degree 4 on [-0.5, 0.5], relative error 4e-6. */
static inline __m512 power_of_two(__m512 y) {
    __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(y, n);
    __m512 p = _mm512_set1_ps(9.6181291e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Q rows (with their bias) of one head as tiles: [block of 16 rows][step of 32 dims][16 rows][32]. */
static void pack_queries(bf16 *to, const bf16 *q, const float *bias, int64_t stride, int64_t len, int64_t dims) {
    for (int64_t row = 0; row < (len + TILE - 1) / TILE * TILE; row++)
        for (int64_t d = 0; d < dims; d += TILE) {
            bf16 *cell = to + (row / TILE) * TILE * dims + (d / PAIR) * TILE * PAIR + (row % TILE) * PAIR + d % PAIR;
            __m512 x = row < len ? _mm512_add_ps(load_bf16(q + row * stride + d), _mm512_loadu_ps(bias + d))
                                 : _mm512_setzero_ps();
            store_bf16(cell, x);
        }
}

/* K rows as right-hand tiles of Q K^T: [block of 16 keys][step of 32 dims][16 pairs of dims][16 keys]. */
static void pack_keys(uint32_t *to, const bf16 *k, int64_t stride, int64_t len, int64_t dims) {
    const __m512i lane = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                            _mm512_set1_epi32((int)(stride / 2)));
    for (int64_t first = 0; first < len; first += TILE) {
        int64_t left = len - first;
        __mmask16 mask = left >= TILE ? 0xffff : (__mmask16)((1u << left) - 1);
        for (int64_t pair = 0; pair < dims / 2; pair++) {
            const bf16 *base = k + first * stride + 2 * pair;
            _mm512_storeu_si512(to, _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, lane, base, 4));
            to += TILE;
        }
    }
}

/* V rows as right-hand tiles of P V: [step of 32 keys][block of 16 dims][16 pairs of keys][16 dims]. */
static void pack_values(uint32_t *to, const bf16 *v, int64_t stride, int64_t len, int64_t dims) {
    for (int64_t first = 0; first < len; first += PAIR)
        for (int64_t d = 0; d < dims; d += TILE)
            for (int64_t pair = 0; pair < TILE; pair++) {
                int64_t even = first + 2 * pair, odd = even + 1;
                __m256i low = even < len ? _mm256_loadu_si256((const __m256i *)(v + even * stride + d)) : _mm256_setzero_si256();
                __m256i high = odd < len ? _mm256_loadu_si256((const __m256i *)(v + odd * stride + d)) : _mm256_setzero_si256();
                __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
                _mm512_storeu_si512(to, both);
                to += TILE;
            }
}

/* scores (16, keys) -> bf16 weights that sum to 1 / shares (16). Keys past `len` weigh nothing. */
static void soften(bf16 *weights, float *shares, const float *scores, int64_t len, int64_t keys, float scale) {
    for (int row = 0; row < TILE; row++) {
        const float *s = scores + row * keys;
        __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
        int64_t i = 0;
        for (; i + TILE <= len; i += TILE) most = _mm512_max_ps(most, _mm512_loadu_ps(s + i));
        __mmask16 rest = (__mmask16)((1u << (len - i)) - 1);
        if (rest) most = _mm512_mask_max_ps(most, rest, most, _mm512_loadu_ps(s + i));
        __m512 by = _mm512_set1_ps(scale * 1.44269504f);
        __m512 top = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), by);
        for (i = 0; i < keys; i += TILE) {
            __mmask16 in = len - i >= TILE ? 0xffff : len > i ? (__mmask16)((1u << (len - i)) - 1) : 0;
            __m512 e = _mm512_maskz_mov_ps(in, power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(s + i), by, top)));
            sum = _mm512_add_ps(sum, e);
            store_bf16(weights + (i / PAIR) * TILE * PAIR + row * PAIR + i % PAIR, e);
        }
        shares[row] = 1.0f / _mm512_reduce_add_ps(sum);
    }
}

/* Bytes of work area that `attend_bf16` wants for sequences of up to `longest` tokens. */
int64_t attend_work_bytes(int64_t longest, int64_t dims) {
    int64_t keys = (longest + PAIR - 1) / PAIR * PAIR;
    return 3 * keys * dims * 2 + TILE * keys * (4 + 2) + TILE * TILE * 4 + TILE * 4 + 8 * 64;
}

static inline char *aligned(char **work, int64_t bytes) {
    char *at = (char *)(((uintptr_t)*work + 63) & ~(uintptr_t)63);
    *work = at + bytes;
    return at;
}

/* Full attention of every sequence with itself. qkv (T, 3 * heads * dims) without biases, out (T, heads * dims).
 *
 * query_bias (heads * dims). A bias of the keys moves all scores of a query alike, so softmax drops it; a bias of the
 * values moves the output by itself, so the caller adds it after. dims must be a multiple of 32.
 */
void attend_bf16(const bf16 *qkv, const float *query_bias, const int32_t *cu_seqlens, int64_t sequences, int64_t heads,
                 int64_t dims, float scale, bf16 *out, char *work, int64_t longest) {
    int64_t width = heads * dims, stride = 3 * width, most = (longest + PAIR - 1) / PAIR * PAIR;
    bf16 *queries = (bf16 *)aligned(&work, most * dims * 2);
    uint32_t *keys_packed = (uint32_t *)aligned(&work, most * dims * 2);
    uint32_t *values = (uint32_t *)aligned(&work, most * dims * 2);
    float *scores = (float *)aligned(&work, TILE * most * 4);
    bf16 *weights = (bf16 *)aligned(&work, TILE * most * 2);
    float *cell = (float *)aligned(&work, TILE * TILE * 4);
    float shares[TILE];
    configure();
    for (int64_t n = 0; n < sequences; n++) {
        int64_t begin = cu_seqlens[n], len = cu_seqlens[n + 1] - begin;
        int64_t keys = (len + PAIR - 1) / PAIR * PAIR, key_blocks = (len + TILE - 1) / TILE;
        for (int64_t h = 0; h < heads; h++) {
            const bf16 *q = qkv + begin * stride + h * dims;
            pack_queries(queries, q, query_bias + h * dims, stride, len, dims);
            pack_keys(keys_packed, q + width, stride, len, dims);
            pack_values(values, q + 2 * width, stride, len, dims);
            for (int64_t first = 0; first < len; first += TILE) {
                const bf16 *block = queries + first * dims;
                for (int64_t b = 0; b < key_blocks; b++) {
                    _tile_zero(0);
                    for (int64_t d = 0; d < dims; d += PAIR) {
                        _tile_loadd(1, block + d * TILE, 64);
                        _tile_loadd(2, keys_packed + (b * dims + d) / 2 * TILE, 64);
                        _tile_dpbf16ps(0, 1, 2);
                    }
                    _tile_stored(0, scores + b * TILE, keys * 4);
                }
                soften(weights, shares, scores, len, keys, scale);
                int64_t rows = len - first < TILE ? len - first : TILE;
                for (int64_t d = 0; d < dims; d += TILE) {
                    _tile_zero(3);
                    for (int64_t k = 0; k < keys; k += PAIR) {
                        _tile_loadd(4, weights + k * TILE, 64);
                        _tile_loadd(5, values + (k / PAIR * (dims / TILE) + d / TILE) * TILE * TILE, 64);
                        _tile_dpbf16ps(3, 4, 5);
                    }
                    _tile_stored(3, cell, 64);
                    for (int64_t r = 0; r < rows; r++)
                        store_bf16(out + (begin + first + r) * width + h * dims + d,
                                   _mm512_mul_ps(_mm512_loadu_ps(cell + r * TILE), _mm512_set1_ps(shares[r])));
                }
            }
        }
    }
    _tile_release();
}
#else
int has_tiles(void) { return 0; }
#endif
