/* The most multiply-adds that a core finishes, with every operand in a register: of int8, or with
   -DBFLOAT16 of bfloat16. With -DNO_TILES matrix units that need tiles are left alone. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* A step multiplies and adds PER_STEP pairs. Tiles come before vectors, wider vectors before
   narrower ones, and a matrix product of 2 x 8 by 8 x 2 before a dot product of half as many. */
#if !defined(BFLOAT16) && defined(__AMX_INT8__) && !defined(NO_TILES)
#define NAME "AMX, tdpbssd on 16 x 64 by 64 x 16"
#define PER_STEP 16384
#define TILES
#define MULTIPLY_ADD_TILES(sum) _tile_dpbssd(sum, 6, 7)

#elif defined(BFLOAT16) && defined(__AMX_BF16__) && !defined(NO_TILES)
#define NAME "AMX, tdpbf16ps on 16 x 32 by 32 x 16"
#define PER_STEP 8192
#define TILES
#define MULTIPLY_ADD_TILES(sum) _tile_dpbf16ps(sum, 6, 7)

#elif !defined(BFLOAT16) && defined(__AVX512VNNI__)
#define NAME "AVX-512 VNNI, vpdpbusd on 512 bits"
#define PER_STEP 64
#define REGISTER "v"
typedef __m512i Vector;
#define MULTIPLY_ADD(sum, a, b) sum = _mm512_dpbusd_epi32(sum, a, b)

#elif !defined(BFLOAT16) && defined(__AVXVNNI__)
#define NAME "AVX-VNNI, vpdpbusd on 256 bits"
#define PER_STEP 32
#define REGISTER "x"
typedef __m256i Vector;
#define MULTIPLY_ADD(sum, a, b) sum = _mm256_dpbusd_avx_epi32(sum, a, b)

#elif !defined(BFLOAT16) && defined(__AVX2__)
#define NAME "AVX2, vpmaddubsw with vpmaddwd and vpaddd on 256 bits"
#define PER_STEP 32
#define REGISTER "x"
typedef __m256i Vector;
#define MULTIPLY_ADD(sum, a, b)                                    \
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))

#elif defined(BFLOAT16) && defined(__AVX512BF16__)
#define NAME "AVX-512 BF16, vdpbf16ps on 512 bits"
#define PER_STEP 32
#define REGISTER "v"
typedef __m512i Vector;
#define MULTIPLY_ADD(sum, a, b) \
  sum = (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b)

#elif !defined(BFLOAT16) && defined(__ARM_FEATURE_MATMUL_INT8)
#define NAME "ARM i8mm, smmla on 128 bits"
#define PER_STEP 32
#define REGISTER "w"
typedef int8x16_t Vector;
#define MULTIPLY_ADD(sum, a, b) \
  sum = vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), a, b))

#elif !defined(BFLOAT16) && defined(__ARM_FEATURE_DOTPROD)
#define NAME "ARM dotprod, sdot on 128 bits"
#define PER_STEP 16
#define REGISTER "w"
typedef int8x16_t Vector;
#define MULTIPLY_ADD(sum, a, b) \
  sum = vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(sum), a, b))
#endif

#if defined(TILES)
#include <sys/syscall.h>
#include <unistd.h>

/* Linux keeps the tiles' state for a process that asks: ARCH_REQ_XCOMP_PERM of XTILEDATA. */
int ready(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

/* A tile's sum is ready some 50 cycles after it began, and one begins every 16. */
#define SUMS 6
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define BEGIN(i) _tile_zero(i);
#define STEP(i) MULTIPLY_ADD_TILES(i);

void run(int64_t rounds) {
  struct { uint8_t palette, first_row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes;
  uint8_t ones[1024];
  memset(&shapes, 0, sizeof shapes);
  memset(ones, 1, sizeof ones);
  shapes.palette = 1;
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = 16;
  __asm__ volatile("" : : "r"(&shapes), "r"(ones) : "memory"); /* the intrinsics do not say so */
  _tile_loadconfig(&shapes);
  EACH(BEGIN)
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  for (; rounds > 0; --rounds) {
    EACH(STEP)
  }
  _tile_release();
}

int64_t multiply_adds_per_round(void) { return (int64_t)SUMS * PER_STEP; }

#elif defined(NAME)

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
#if defined(BFLOAT16)
typedef float Number, Sum;
#else
typedef int8_t Number;
typedef uint32_t Sum;
#endif

static volatile Sum result;

void run(int64_t rounds) {
  Number a[LENGTH], b[LENGTH];
  Sum sum = 0;
  memset(a, 1, sizeof a);
  memset(b, 2, sizeof b);
  for (; rounds > 0; --rounds) {
    __asm__ volatile("" : : "r"(a), "r"(b) : "memory"); /* the arrays may have changed */
    for (int i = 0; i < LENGTH; ++i) sum += (Sum)(a[i] * b[i]);
  }
  result = sum;
}

int64_t multiply_adds_per_round(void) { return LENGTH; }

#endif

#if !defined(TILES)
int ready(void) { return 1; }
#endif

/* Matrix units that have no kernel here are not in the peak. */
#if defined(__ARM_FEATURE_SME)
#define LEFT_OUT "; without SME: a lower bound"
#else
#define LEFT_OUT ""
#endif

const char *name(void) { return NAME LEFT_OUT; }
