/* Full attention of every sequence with itself, 16 queries of a head at a time.
 *
 * While the weights of one block of queries are made from their scores, the tiles work on the scores of the next block and
 * on the sums of the last, so that neither part of the core waits for the other.
 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

/* 2^y for y <= 0: 2^floor(y) * 2^f, the second factor by a polynomial on [0, 1), relative error 1e-4. */
static inline __m512 power_of_two(__m512 y) {
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.078024484f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2260672f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6958335f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999252f));
    return _mm512_scalef_ps(p, y);
}

/* V rows as right-hand tiles of P V: [step of 32 keys][block of 16 dims][16 pairs of keys][16 dims]. */
static void pack_values(uint32_t *to, const bf16 *v, int64_t stride, int64_t len, int64_t dims) {
    for (int64_t first = 0; first < len; first += PAIR)
        for (int64_t d = 0; d < dims; d += TILE)
            for (int64_t pair = 0; pair < TILE; pair++, to += TILE) {
                int64_t even = first + 2 * pair, odd = even + 1;
                __m256i low = even < len ? _mm256_loadu_si256((const __m256i *)(v + even * stride + d)) : _mm256_setzero_si256();
                __m256i high = odd < len ? _mm256_loadu_si256((const __m256i *)(v + odd * stride + d)) : _mm256_setzero_si256();
                __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
                _mm512_storeu_si512(to, both);
            }
}

/* One block of queries on its way. scores [block of 16 keys][16 rows][16], weights [step of 32 keys][16 rows][32]. */
typedef struct {
    const bf16 *queries;
    int64_t stride, rows, len;
    const uint32_t *keys, *values;
    float *scores;
    bf16 *weights, *out;
    float shares[TILE];
} queries_block;

static inline void score(const queries_block *q, int64_t first, int64_t last, int64_t dims) {
    for (int64_t b = first; b < last; b++) {
        _tile_zero(0);
        if (dims == PAIR) {
            if (b == first) _tile_loadd(1, q->queries, q->stride * 2);
            _tile_loadd(2, q->keys + b * dims / 2 * TILE, 64);
            _tile_dpbf16ps(0, 1, 2);
        } else for (int64_t d = 0; d < dims; d += PAIR) {
            _tile_loadd(1, q->queries + d, q->stride * 2);
            _tile_loadd(2, q->keys + (b * dims + d) / 2 * TILE, 64);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, q->scores + b * TILE * TILE, 64);
    }
}

/* The weights of one row of scores, not yet divided by their sum. Keys past the last weigh nothing. */
static inline void soften(queries_block *q, int row, __m512 scale) {
    const float *s = q->scores + row * TILE;
    bf16 *to = q->weights + row * PAIR;
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    int64_t blocks = q->len / TILE, b = 0;
    __mmask16 rest = (__mmask16)((1u << q->len % TILE) - 1);
    __m512 other_most = most;
    for (; b + 1 < blocks; b += 2) {
        most = _mm512_max_ps(most, _mm512_load_ps(s + b * TILE * TILE));
        other_most = _mm512_max_ps(other_most, _mm512_load_ps(s + (b + 1) * TILE * TILE));
    }
    if (b < blocks) other_most = _mm512_max_ps(other_most, _mm512_load_ps(s + b++ * TILE * TILE));
    most = _mm512_max_ps(most, other_most);
    if (rest) most = _mm512_mask_max_ps(most, rest, most, _mm512_load_ps(s + b * TILE * TILE));
    __m512 top = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), scale);
    for (b = 0; b + 1 < blocks; b += 2) {
        __m512 x = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(s + b * TILE * TILE), scale, top));
        __m512 y = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(s + (b + 1) * TILE * TILE), scale, top));
        sum = _mm512_add_ps(sum, _mm512_add_ps(x, y));
        _mm512_store_si512(to + b * TILE * TILE, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
    if (b * TILE < q->len) { /* one or two blocks that may end early */
        __mmask16 first = b < blocks ? 0xffff : rest, second = b < blocks ? rest : 0;
        const float *other = second ? s + (b + 1) * TILE * TILE : s + b * TILE * TILE;
        __m512 x = _mm512_maskz_mov_ps(first, power_of_two(_mm512_fmsub_ps(_mm512_load_ps(s + b * TILE * TILE), scale, top)));
        __m512 y = _mm512_maskz_mov_ps(second, power_of_two(_mm512_fmsub_ps(_mm512_load_ps(other), scale, top)));
        sum = _mm512_add_ps(sum, _mm512_add_ps(x, y));
        _mm512_store_si512(to + b * TILE * TILE, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
    q->shares[row] = 1.0f / _mm512_reduce_add_ps(sum);
}

/* 32 dims of the output, from dim d on, out of the sums in tiles 3 and 4. */
static inline void put_mixed(const queries_block *q, int64_t d, int64_t width) {
    float sums[TILE * BLOCK] __attribute__((aligned(64)));
    _tile_stored(3, sums, BLOCK * 4);
    _tile_stored(4, sums + TILE, BLOCK * 4);
    for (int64_t r = 0; r < q->rows; r++) {
        __m512 share = _mm512_set1_ps(q->shares[r]);
        __m512 x = _mm512_mul_ps(_mm512_load_ps(sums + r * BLOCK), share);
        __m512 y = _mm512_mul_ps(_mm512_load_ps(sums + r * BLOCK + TILE), share);
        _mm512_storeu_si512(q->out + r * width + d, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    }
}

/* Steps first to last of the sums over keys, for all dims: step n is 32 keys of 32 dims. Sums stay in tiles 3 and 4. */
static inline void mix(const queries_block *q, int64_t first, int64_t last, int64_t dims, int64_t width) {
    int64_t steps = (q->len + PAIR - 1) / PAIR;
    for (int64_t n = first; n < last; n++) {
        int64_t d = n / steps * PAIR, k = n % steps;
        const uint32_t *values = q->values + (k * (dims / TILE) + d / TILE) * TILE * TILE;
        if (!k) {
            _tile_zero(3);
            _tile_zero(4);
        }
        _tile_loadd(5, q->weights + k * PAIR * TILE, 64);
        _tile_loadd(6, values, 64);
        _tile_dpbf16ps(3, 5, 6);
        _tile_loadd(7, values + TILE * TILE, 64);
        _tile_dpbf16ps(4, 5, 7);
        if (k + 1 == steps) put_mixed(q, d, width);
    }
}

static inline void step(queries_block *now, const queries_block *next, const queries_block *last, int64_t dims,
                        int64_t width, __m512 scale) {
    int64_t blocks = next ? (next->len + TILE - 1) / TILE : 0;
    int64_t steps = last ? (last->len + PAIR - 1) / PAIR * (dims / PAIR) : 0;
    for (int slot = 0; slot < TILE; slot++) {
        if (next) score(next, slot * blocks / TILE, (slot + 1) * blocks / TILE, dims);
        if (last) mix(last, slot * steps / TILE, (slot + 1) * steps / TILE, dims, width);
        if (now && slot < now->rows) soften(now, slot, scale);
    }
}

static int64_t bytes_packed(int64_t longest, int64_t dims) { return (longest + PAIR - 1) / PAIR * PAIR * dims * 2; }

/* Bytes of work area that `attend_bf16` wants for sequences of up to `longest` tokens. */
int64_t attend_work_bytes(int64_t longest, int64_t dims) {
    int64_t keys = (longest + PAIR - 1) / PAIR * PAIR;
    return 6 * bytes_packed(longest, dims) + 3 * TILE * (keys * (4 + 2) + dims * 2) + 16 * 64;
}

/* qkv (T, 3 * heads * dims) with their biases, out (T, heads * dims); dims is a multiple of 32. */
void attend_bf16(const bf16 *qkv, const int32_t *cu_seqlens, int64_t sequences, int64_t heads, int64_t dims, bf16 *out,
                 char *work, int64_t longest) {
    int64_t width = heads * dims, stride = 3 * width, keys = (longest + PAIR - 1) / PAIR * PAIR;
    const __m512 scale = _mm512_set1_ps(1.44269504f / sqrtf((float)dims));
    queries_block ring[3], *now = 0, *last = 0;
    uint32_t *packed[3][2]; /* three heads may be on their way at a time */
    bf16 *tails[3];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++) packed[i][j] = (uint32_t *)aligned(&work, bytes_packed(longest, dims));
    for (int i = 0; i < 3; i++) {
        ring[i].scores = (float *)aligned(&work, TILE * keys * 4);
        ring[i].weights = (bf16 *)aligned(&work, TILE * keys * 2);
        tails[i] = (bf16 *)aligned(&work, TILE * dims * 2);
    }
    int64_t turn = 0, side = 0;
    configure();
    for (int64_t n = 0; n < sequences; n++) {
        int64_t begin = cu_seqlens[n], len = cu_seqlens[n + 1] - begin;
        for (int64_t h = 0; h < heads; h++, side = (side + 1) % 3) {
            const bf16 *q = qkv + begin * stride + h * dims;
            for (int64_t first = 0; first < len; first += TILE, turn = (turn + 1) % 3) {
                if (!first) {
                    pack_turned(packed[side][0], q + width, stride, len, dims);
                    pack_values(packed[side][1], q + 2 * width, stride, len, dims);
                }
                queries_block *next = &ring[turn];
                next->rows = len - first < TILE ? len - first : TILE;
                next->len = len;
                next->keys = packed[side][0];
                next->values = packed[side][1];
                next->out = out + (begin + first) * width + h * dims;
                next->queries = q + first * stride;
                next->stride = stride;
                if (next->rows < TILE) { /* a tile has 16 rows, and those after the last may not be ours to read */
                    for (int64_t r = 0; r < TILE; r++)
                        memcpy(tails[turn] + r * dims, next->queries + (r < next->rows ? r : 0) * stride, dims * 2);
                    next->queries = tails[turn];
                    next->stride = dims;
                }
                step(now, next, last, dims, width, scale);
                last = now;
                now = next;
            }
        }
    }
    step(now, 0, last, dims, width, scale);
    step(0, 0, now, dims, width, scale);
    _tile_release();
}
#endif
