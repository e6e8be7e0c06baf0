/* The greatest score of each word of a vocabulary over the tokens of each sequence: SPLADE's product, fused with its max.
 *
 * Scores are made 32 tokens by 32 words at a time in AMX tiles, in float32, and are never written out. Weights are
 * packed by `pack_weights_bf16`.
 */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

enum { STRETCH = 512 };

/* 32 tokens from x (stride dims) against 32 words: scores (32, 32). */
static inline void scores_of_block(float *scores, const bf16 *x, const uint32_t *words, int64_t dims) {
    const uint32_t *other = words + TILE * dims / 2;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t d = 0; d < dims; d += PAIR) {
        _tile_loadd(4, x + d, dims * 2);
        _tile_loadd(5, x + TILE * dims + d, dims * 2);
        _tile_loadd(6, words + d / 2 * TILE, 64);
        _tile_loadd(7, other + d / 2 * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, scores, BLOCK * 4);
    _tile_stored(1, scores + TILE, BLOCK * 4);
    _tile_stored(2, scores + TILE * BLOCK, BLOCK * 4);
    _tile_stored(3, scores + TILE * BLOCK + TILE, BLOCK * 4);
}

/* out (sequences, width) = max(out, score) over the tokens of each. x has tokens rounded up to 32 rows of dims, a multiple
 * of 32; sequence_of: of each of the `tokens`; words: `width` of them, a multiple of 32, packed. */
void vocabulary_max_bf16(float *out, const bf16 *x, const int32_t *sequence_of, int64_t tokens, const uint32_t *words,
                         int64_t width, int64_t dims) {
    float scores[BLOCK * BLOCK] __attribute__((aligned(64)));
    configure();
    for (int64_t begin = 0; begin < tokens; begin += STRETCH) { /* what of x stays in the second cache */
        int64_t end = begin + STRETCH < tokens ? begin + STRETCH : tokens;
        for (int64_t word = 0; word < width; word += BLOCK)
            for (int64_t t = begin; t < end; t += BLOCK) {
                scores_of_block(scores, x + t * dims, words + word * dims / 2, dims);
                int64_t rows = end - t < BLOCK ? end - t : BLOCK;
                for (int64_t row = 0; row < rows;) {
                    int32_t sequence = sequence_of[t + row];
                    float *to = out + sequence * width + word;
                    __m512 low = _mm512_loadu_ps(to), high = _mm512_loadu_ps(to + TILE);
                    for (; row < rows && sequence_of[t + row] == sequence; row++) {
                        low = _mm512_max_ps(low, _mm512_load_ps(scores + row * BLOCK));
                        high = _mm512_max_ps(high, _mm512_load_ps(scores + row * BLOCK + TILE));
                    }
                    _mm512_storeu_ps(to, low);
                    _mm512_storeu_ps(to + TILE, high);
                }
            }
    }
    _tile_release();
}
#endif
