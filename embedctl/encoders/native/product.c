/* x times packed weights, 32 rows by 32 columns at a time; what follows the product is done for one block while the tiles
 * work on the next. And the half of a BERT layer that comes after its attention, made of such products.
 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

enum { PANEL_BYTES = 1200000 }; /* weights that stay in the second cache while all rows pass */

/* A finished block of sums (32, 32) and where it goes. */
typedef struct {
    const float *sums;
    bf16 *to;
    int64_t rows;
    __m512 low, high;
} finished;

static inline void put_rows(const finished *f, int64_t first, int64_t last, int64_t stride, int with_gelu, const curve *c) {
    last = last < f->rows ? last : f->rows;
    for (int64_t r = first; r < last; r++) {
        __m512 x = _mm512_add_ps(_mm512_load_ps(f->sums + r * BLOCK), f->low);
        __m512 y = _mm512_add_ps(_mm512_load_ps(f->sums + r * BLOCK + TILE), f->high);
        if (with_gelu) {
            x = gelu_of_16(x, c);
            y = gelu_of_16(y, c);
        }
        _mm512_storeu_si512(f->to + r * stride, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
}

static inline __attribute__((always_inline)) void product(
    bf16 *restrict out, const bf16 *restrict x, int64_t rows, int64_t dims, const uint32_t *restrict weights, int64_t width,
    const float *restrict bias, int with_gelu) {
    float sums[2][BLOCK * BLOCK] __attribute__((aligned(64)));
    const curve c = load_curve();
    int64_t steps = dims / PAIR, share = (BLOCK + steps - 1) / steps, turn = 0;
    int64_t panels = (width * dims * 2 + PANEL_BYTES - 1) / PANEL_BYTES;
    int64_t panel = (width / panels + BLOCK - 1) / BLOCK * BLOCK;
    finished last = {sums[0], out, 0, _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t left = 0; left < width; left += panel)
        for (int64_t row = 0; row < rows; row += BLOCK) {
            const bf16 *above = x + row * dims, *below = above + TILE * dims;
            for (int64_t column = left; column < width && column < left + panel; column += BLOCK, turn ^= 1) {
                const uint32_t *near = weights + column * dims / 2, *far = near + TILE * dims / 2;
                _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
                for (int64_t s = 0; s < steps; s++) {
                    _tile_loadd(4, above + s * PAIR, dims * 2);
                    _tile_loadd(6, near + s * TILE * TILE, 64);
                    _tile_dpbf16ps(0, 4, 6);
                    _tile_loadd(7, far + s * TILE * TILE, 64);
                    _tile_dpbf16ps(1, 4, 7);
                    _tile_loadd(5, below + s * PAIR, dims * 2);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                    put_rows(&last, s * share, (s + 1) * share, width, with_gelu, &c);
                }
                float *to = sums[turn];
                _tile_stored(0, to, BLOCK * 4);
                _tile_stored(1, to + TILE, BLOCK * 4);
                _tile_stored(2, to + TILE * BLOCK, BLOCK * 4);
                _tile_stored(3, to + TILE * BLOCK + TILE, BLOCK * 4);
                last.sums = to;
                last.to = out + row * width + column;
                last.rows = rows - row < BLOCK ? rows - row : BLOCK;
                last.low = _mm512_loadu_ps(bias + column);
                last.high = _mm512_loadu_ps(bias + column + TILE);
            }
        }
    put_rows(&last, 0, BLOCK, width, with_gelu, &c);
}

/* out (rows, width) <- x (rows, dims) weights^T + bias. x is read up to a multiple of 32 rows; dims and width are multiples
 * of 32. with_gelu: its GELU. */
void product_bf16(bf16 *out, const bf16 *x, int64_t rows, int64_t dims, const uint32_t *weights, int64_t width,
                  const float *bias, int64_t with_gelu) {
    configure();
    if (with_gelu) product(out, x, rows, dims, weights, width, bias, 1);
    else product(out, x, rows, dims, weights, width, bias, 0);
    _tile_release();
}
#endif
