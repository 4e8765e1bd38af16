/* The kernels of x86 processors, picked at run time.
 *
 * Four squares are added in fp32 (within 2.4e-7 of their sum) before they join a float64 sum; a careful pass squares in
 * float64. Bytes come out in another order than the elements, which a histogram does not see. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,popcnt")))
#define AVX2 __attribute__((target("avx2,fma,f16c,popcnt")))

AVX512 INLINE __m512i load_512(const void *data, int64_t i, int dtype)
{
    if (dtype == F32) return _mm512_loadu_si512((const char *)data + 4 * i);
    __m256i half = _mm256_loadu_si256((const __m256i *)((const char *)data + 2 * i));
    if (dtype == F16) return _mm512_castps_si512(_mm512_cvtph_ps(half));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

AVX512 INLINE __m512d squares_512(__m512i a, __m512d sum)
{
    __m512d x = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_castsi512_si256(a)));
    __m512d y = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(a, 1)));
    return _mm512_fmadd_pd(x, x, _mm512_fmadd_pd(y, y, sum));
}

AVX512 INLINE void convert_512(const void *data, int64_t n, int dtype, int careful, uint8_t *bytes, Block *block)
{
    const __m512i abs = _mm512_set1_epi32(ABS32), inf = _mm512_set1_epi32(INF32), one = _mm512_set1_epi32(1);
    __m512i amax = _mm512_setzero_si512(), least = _mm512_set1_epi32(-1);
    __m512d sum = _mm512_setzero_pd(), odd = _mm512_setzero_pd();
    for (int64_t i = 0; i < n; i += STEP) {
        __m512i a[4];
        __m512 squares = _mm512_setzero_ps();
        for (int j = 0; j < 4; j++) {
            a[j] = _mm512_and_si512(load_512(data, i + 16 * j, dtype), abs);
            if (careful) {
                block->zeros += _mm_popcnt_u32(_mm512_testn_epi32_mask(a[j], a[j]));
                block->infs += _mm_popcnt_u32(_mm512_cmpeq_epi32_mask(a[j], inf));
                block->nans += _mm_popcnt_u32(_mm512_cmpgt_epi32_mask(a[j], inf));
                a[j] = _mm512_maskz_mov_epi32(_mm512_cmplt_epi32_mask(a[j], inf), a[j]);
                sum = squares_512(a[j], sum);
            } else {
                squares = _mm512_fmadd_ps(_mm512_castsi512_ps(a[j]), _mm512_castsi512_ps(a[j]), squares);
            }
            amax = _mm512_max_epi32(amax, a[j]);
            least = _mm512_min_epu32(least, _mm512_sub_epi32(a[j], one));
            a[j] = _mm512_srli_epi32(a[j], 23);
        }
        __m512i packed = _mm512_packus_epi16(_mm512_packus_epi32(a[0], a[1]), _mm512_packus_epi32(a[2], a[3]));
        _mm512_storeu_si512(bytes + i, packed);
        if (careful) continue;
        sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(squares)));
        odd = _mm512_add_pd(odd, _mm512_cvtps_pd(_mm512_extractf32x8_ps(squares, 1)));
    }
    block->amax = (uint32_t)_mm512_reduce_max_epi32(amax);
    block->least = _mm512_reduce_min_epu32(least);
    block->sumsq = _mm512_reduce_add_pd(_mm512_add_pd(sum, odd));
}

COPIES(AVX512 static, any_512, convert_512)

AVX2 INLINE __m256i load_256(const void *data, int64_t i, int dtype)
{
    if (dtype == F32) return _mm256_loadu_si256((const __m256i *)((const char *)data + 4 * i));
    __m128i half = _mm_loadu_si128((const __m128i *)((const char *)data + 2 * i));
    if (dtype == F16) return _mm256_castps_si256(_mm256_cvtph_ps(half));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

AVX2 INLINE int64_t lanes_256(__m256i mask)
{
    return _mm_popcnt_u32((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}

AVX2 INLINE __m256d squares_256(__m256i a, __m256d sum)
{
    __m256d x = _mm256_cvtps_pd(_mm_castsi128_ps(_mm256_castsi256_si128(a)));
    __m256d y = _mm256_cvtps_pd(_mm_castsi128_ps(_mm256_extracti128_si256(a, 1)));
    return _mm256_fmadd_pd(x, x, _mm256_fmadd_pd(y, y, sum));
}

AVX2 INLINE void convert_256(const void *data, int64_t n, int dtype, int careful, uint8_t *bytes, Block *block)
{
    const __m256i abs = _mm256_set1_epi32(ABS32), inf = _mm256_set1_epi32(INF32), one = _mm256_set1_epi32(1);
    __m256i amax = _mm256_setzero_si256(), least = _mm256_set1_epi32(-1);
    __m256d sum = _mm256_setzero_pd(), odd = _mm256_setzero_pd();
    uint32_t lanes[2][8];
    double sums[4];
    for (int64_t i = 0; i < n; i += 32) {
        __m256i a[4];
        __m256 squares = _mm256_setzero_ps();
        for (int j = 0; j < 4; j++) {
            a[j] = _mm256_and_si256(load_256(data, i + 8 * j, dtype), abs);
            if (careful) {
                block->zeros += lanes_256(_mm256_cmpeq_epi32(a[j], _mm256_setzero_si256()));
                block->infs += lanes_256(_mm256_cmpeq_epi32(a[j], inf));
                block->nans += lanes_256(_mm256_cmpgt_epi32(a[j], inf));
                a[j] = _mm256_and_si256(a[j], _mm256_cmpgt_epi32(inf, a[j]));
                sum = squares_256(a[j], sum);
            } else {
                squares = _mm256_fmadd_ps(_mm256_castsi256_ps(a[j]), _mm256_castsi256_ps(a[j]), squares);
            }
            amax = _mm256_max_epi32(amax, a[j]);
            least = _mm256_min_epu32(least, _mm256_sub_epi32(a[j], one));
            a[j] = _mm256_srli_epi32(a[j], 23);
        }
        __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(a[0], a[1]), _mm256_packus_epi32(a[2], a[3]));
        _mm256_storeu_si256((__m256i *)(bytes + i), packed);
        if (careful) continue;
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_castps256_ps128(squares)));
        odd = _mm256_add_pd(odd, _mm256_cvtps_pd(_mm256_extractf128_ps(squares, 1)));
    }
    _mm256_storeu_si256((__m256i *)lanes[0], amax);
    _mm256_storeu_si256((__m256i *)lanes[1], least);
    _mm256_storeu_pd(sums, _mm256_add_pd(sum, odd));
    block->least = UINT32_MAX;
    for (int j = 0; j < 8; j++) {
        if (lanes[0][j] > block->amax) block->amax = lanes[0][j];
        if (lanes[1][j] < block->least) block->least = lanes[1][j];
    }
    block->sumsq = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

COPIES(AVX2 static, any_256, convert_256)

AVX2 static void group_256(const uint8_t *bytes, int64_t n, const uint8_t *exponents, int64_t *counts)
{
    __m256i wanted[GROUP], found[GROUP]; /* a byte lane counts to at most BLOCK / 32 = 128 */
    for (int j = 0; j < GROUP; j++) {
        wanted[j] = _mm256_set1_epi8((char)exponents[j]);
        found[j] = _mm256_setzero_si256();
    }
    for (int64_t i = 0; i < n; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(bytes + i));
        for (int j = 0; j < GROUP; j++) found[j] = _mm256_sub_epi8(found[j], _mm256_cmpeq_epi8(x, wanted[j]));
    }
    for (int j = 0; j < GROUP; j++) {
        int64_t sums[4];
        _mm256_storeu_si256((__m256i *)sums, _mm256_sad_epu8(found[j], _mm256_setzero_si256()));
        counts[j] = sums[0] + sums[1] + sums[2] + sums[3];
    }
}

AVX2 static void rest_256(const uint8_t *bytes, int64_t n, int top, int64_t *bins)
{
    const __m256i limit = _mm256_set1_epi8((char)(top - 1)), one = _mm256_set1_epi8(1);
    for (int64_t i = 0; i < n; i += 32) { /* zero wraps to 255 and falls out */
        __m256i x = _mm256_sub_epi8(_mm256_loadu_si256((const __m256i *)(bytes + i)), one);
        uint32_t mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_min_epu8(x, limit)));
        for (; mask; mask &= mask - 1) bins[bytes[i + __builtin_ctz(mask)]]++;
    }
}

AVX2 static void avx2(const void *data, int64_t n, int dtype, Tally *t)
{
    if (dtype == F64 || WIDTH[dtype] == 1) scalar(data, n, dtype, t);
    else add_blocks(data, n, dtype, t, (Vectors){any_256, group_256, rest_256});
}

AVX512 static void avx512(const void *data, int64_t n, int dtype, Tally *t)
{
    if (dtype == F64 || WIDTH[dtype] == 1) scalar(data, n, dtype, t);
    else add_blocks(data, n, dtype, t, (Vectors){any_512, group_256, rest_256});
}

static int supported(int isa) /* every processor with AVX2 has F16C */
{
    __builtin_cpu_init();
    int with_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
    int with_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return isa == 2 || (with_avx2 && (isa == 1 || with_avx512));
}

static Kernel const KERNELS[] = {avx512, avx2, scalar};
static const char *const NAMES[] = {"avx512", "avx2", "scalar"};
#else
#define HAVE_X86 0

static int supported(int isa) { return isa == 0; }

static Kernel const KERNELS[] = {scalar};
static const char *const NAMES[] = {"scalar"};
#endif
