/* What torch leaves slow between two matrix products of a BERT layer on a CPU, for packed batches, one thread a call.
 *
 * bf16 is carried as uint16_t; all sums are taken in float32. Rows are tokens. Nothing here allocates beyond one work
 * area of the caller's. tiles.c, attention.c and product.c need AMX; this is plain C that the compiler turns into vectors.
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

/* Phi(a) - 1/2 for a >= 0: 32 parabolas through three points each, chosen by 6 a rounded; error at most 1e-5. */
static float parabolas[3][32] __attribute__((aligned(64)));

static double above_half(double a) { return 0.5 * erf(a * 0.70710678118654752); }

__attribute__((constructor)) static void fit_parabolas(void) {
    const double reach = sqrt(0.75) / 12.0; /* Chebyshev's points of a sixth */
    for (int i = 0; i < 31; i++) {
        double at = i / 6.0, low = above_half(at - reach), mid = above_half(at), high = above_half(at + reach);
        double slope = (high - low) / (2 * reach), bend = (high - 2 * mid + low) / (2 * reach * reach);
        parabolas[0][i] = (float)(mid - at * (slope - bend * at));
        parabolas[1][i] = (float)(slope - 2 * bend * at);
        parabolas[2][i] = (float)bend;
    }
    parabolas[0][31] = 0.5f;
}

typedef struct { __m512 low[3], high[3]; } curve;

static inline curve load_curve(void) {
    curve c;
    for (int i = 0; i < 3; i++) {
        c.low[i] = _mm512_load_ps(parabolas[i]);
        c.high[i] = _mm512_load_ps(parabolas[i] + 16);
    }
    return c;
}

static inline __m512 gelu_of_16(__m512 x, const curve *c) {
    const __m512 to_whole = _mm512_set1_ps(12582912.0f); /* 1.5 * 2^23: leaves a whole number in the lowest bits */
    __m512 a = _mm512_abs_ps(x), near = _mm512_min_ps(a, _mm512_set1_ps(5.2f));
    __m512i at = _mm512_castps_si512(_mm512_fmadd_ps(near, _mm512_set1_ps(6.0f), to_whole));
    __m512 p = _mm512_permutex2var_ps(c->low[2], at, c->high[2]);
    p = _mm512_fmadd_ps(p, near, _mm512_permutex2var_ps(c->low[1], at, c->high[1]));
    p = _mm512_fmadd_ps(p, near, _mm512_permutex2var_ps(c->low[0], at, c->high[0]));
    return _mm512_fmadd_ps(a, p, _mm512_mul_ps(x, _mm512_set1_ps(0.5f)));
}

void bias_gelu_bf16(bf16 *restrict x, const float *restrict bias, int64_t rows, int64_t width) {
    const curve c = load_curve();
    int64_t whole = width / 16 * 16;
    for (int64_t r = 0; r < rows; r++) {
        bf16 *row = x + r * width;
        for (int64_t i = 0; i < whole; i += 16)
            store_bf16(row + i, gelu_of_16(_mm512_add_ps(load_bf16(row + i), _mm512_loadu_ps(bias + i)), &c));
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
