/* The most int8 multiply-adds that a core finishes, with every operand in a register. */

#include <stdint.h>
#include <string.h>

/* A step multiplies and adds PER_STEP pairs. AVX-512 comes before the narrower AVX-VNNI, and a
   matrix product of 2 x 8 by 8 x 2 before a dot product of half as many pairs. */
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define NAME "AVX-512 VNNI, vpdpbusd on 512 bits"
#define PER_STEP 64
#define REGISTER "v"
typedef __m512i Vector;
#define MULTIPLY_ADD(sum, a, b) sum = _mm512_dpbusd_epi32(sum, a, b)

#elif defined(__AVXVNNI__)
#include <immintrin.h>
#define NAME "AVX-VNNI, vpdpbusd on 256 bits"
#define PER_STEP 32
#define REGISTER "x"
typedef __m256i Vector;
#define MULTIPLY_ADD(sum, a, b) sum = _mm256_dpbusd_avx_epi32(sum, a, b)

#elif defined(__AVX2__)
#include <immintrin.h>
#define NAME "AVX2, vpmaddubsw with vpmaddwd and vpaddd on 256 bits"
#define PER_STEP 32
#define REGISTER "x"
typedef __m256i Vector;
#define MULTIPLY_ADD(sum, a, b)                                    \
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))

#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#define NAME "ARM i8mm, smmla on 128 bits"
#define PER_STEP 32
#define REGISTER "w"
typedef int8x16_t Vector;
#define MULTIPLY_ADD(sum, a, b) \
  sum = vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), a, b))

#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define NAME "ARM dotprod, sdot on 128 bits"
#define PER_STEP 16
#define REGISTER "w"
typedef int8x16_t Vector;
#define MULTIPLY_ADD(sum, a, b) \
  sum = vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(sum), a, b))
#endif

#ifdef NAME

/* A sum is ready for its next step some cycles after the last one; meanwhile the others go on.
   12 keep four units busy for three cycles, and fit in 16 registers beside the operands. */
#define SUMS 12
#define EACH(DO) \
  DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

/* No instruction, but the compiler must believe that it changes the vector: so it can neither
   merge sums that look alike nor take a product out of the loop. */
#define CHANGED(vector) __asm__ volatile("" : "+" REGISTER(vector))

#define BEGIN(i) Vector sum##i = zero;
#define STEP(i)                  \
  CHANGED(a);                    \
  MULTIPLY_ADD(sum##i, a, b);    \
  CHANGED(sum##i);

/* `CHANGED` is also a use, so all the sums are needed, and none has to be returned. */
void run(int64_t rounds) {
  Vector zero, a, b;
  memset(&zero, 0, sizeof zero);
  memset(&a, 1, sizeof a);
  memset(&b, 2, sizeof b);
  CHANGED(b);
  EACH(BEGIN)
  for (; rounds > 0; --rounds) {
    EACH(STEP)
  }
}

int64_t multiply_adds_per_round(void) { return (int64_t)SUMS * PER_STEP; }

#else

#define NAME "a plain loop, as the compiler vectorizes it: a lower bound"
#define LENGTH 1024

static volatile uint32_t result;

void run(int64_t rounds) {
  int8_t a[LENGTH], b[LENGTH];
  uint32_t sum = 0;
  memset(a, 1, sizeof a);
  memset(b, 2, sizeof b);
  for (; rounds > 0; --rounds) {
    __asm__ volatile("" : : "r"(a), "r"(b) : "memory"); /* the arrays may have changed */
    for (int i = 0; i < LENGTH; ++i) sum += (uint32_t)(a[i] * b[i]);
  }
  result = sum;
}

int64_t multiply_adds_per_round(void) { return LENGTH; }

#endif

/* Matrix units are another program, so where there are some the vectors are not the peak. */
#if defined(__AMX_INT8__)
#define LEFT_OUT "; without AMX: a lower bound"
#elif defined(__ARM_FEATURE_SME)
#define LEFT_OUT "; without SME: a lower bound"
#else
#define LEFT_OUT ""
#endif

const char *name(void) { return NAME LEFT_OUT; }
