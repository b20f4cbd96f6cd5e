// The element types of gradients: what the CPU and the GPU compute with, and how they round back,
// with the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "cuda/kernels/aligned_access.h"

namespace eplb::cuda {

enum class ElementType { kFloat32, kFloat64, kBfloat16, kFloat16 };

template <class To, class From>
EPLB_HOST_DEVICE inline To BitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Each: Stored lies in memory, Value is computed with. Round is to nearest, ties to even. CPU and
// GPU make different bits of what is not a number: Round makes them NaN's, all bits but the sign.
// Pair: of the GPU, two Stored in 32 bits, which one instruction adds.
struct Float32Element {
  using Stored = float;
  using Value = float;
  EPLB_HOST_DEVICE static Value Load(Stored stored) { return stored; }
  EPLB_HOST_DEVICE static Stored Round(Value value) {
    return value == value ? value : BitsAs<float>(0x7fffffffU);
  }
};

struct Float64Element {
  using Stored = double;
  using Value = double;
  EPLB_HOST_DEVICE static Value Load(Stored stored) { return stored; }
  EPLB_HOST_DEVICE static Stored Round(Value value) {
    return value == value ? value : BitsAs<double>(uint64_t{0x7fffffffffffffff});
  }
};

inline constexpr uint16_t kHalfwordNan = 0x7fff;

// The upper half of a float.
struct Bfloat16Element {
  using Stored = uint16_t;
  using Value = float;
#ifdef __CUDA_ARCH__
  using Pair = __nv_bfloat162;
#endif
  EPLB_HOST_DEVICE static Value Load(Stored stored) {
    return BitsAs<float>(static_cast<uint32_t>(stored) << 16);
  }
  EPLB_HOST_DEVICE static Stored Round(Value value) {
    const auto bits = BitsAs<uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return kHalfwordNan;
    return static_cast<Stored>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
  }
};

// 5 bits of exponent, 10 of fraction.
struct Float16Element {
  using Stored = uint16_t;
  using Value = float;
#ifdef __CUDA_ARCH__
  using Pair = __half2;
#endif
  EPLB_HOST_DEVICE static Value Load(Stored stored) {
#ifdef __CUDA_ARCH__
    return __half2float(BitsAs<__half>(stored));
#else
    const uint32_t sign = (stored & 0x8000U) << 16;
    const uint32_t exponent = stored >> 10 & 0x1fU;
    const uint32_t fraction = stored & 0x3ffU;
    if (exponent == 0) {  // fraction * 2^-24, exact in a float
      const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
      return BitsAs<float>(sign | BitsAs<uint32_t>(magnitude));
    }
    const uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112;
    return BitsAs<float>(sign | wide << 23 | fraction << 13);
#endif
  }
  EPLB_HOST_DEVICE static Stored Round(Value value) {
    const auto bits = BitsAs<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return kHalfwordNan;
#ifdef __CUDA_ARCH__
    return BitsAs<Stored>(__float2half_rn(value));
#else
    const uint32_t sign = bits >> 16 & 0x8000U;
    uint32_t rounded = 0;
    if (magnitude >= 0x477ff000U) {  // 65520, half way beyond the largest
      rounded = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // 2^-14: a float near 1/2 has steps of 2^-24, too
      rounded = BitsAs<uint32_t>(BitsAs<float>(magnitude) + 0.5F) - 0x3f000000U;
    } else {
      rounded = (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
    }
    return static_cast<Stored>(sign | rounded);
#endif
  }
};

// Calls visitor(Float32Element()) and so on.
template <class Visitor>
auto VisitElement(ElementType type, const Visitor& visitor) {
  switch (type) {
    case ElementType::kFloat64:
      return visitor(Float64Element());
    case ElementType::kBfloat16:
      return visitor(Bfloat16Element());
    case ElementType::kFloat16:
      return visitor(Float16Element());
    case ElementType::kFloat32:
      break;
  }
  return visitor(Float32Element());
}

inline int64_t ElementBytes(ElementType type) {
  return VisitElement(type, [](auto element) {
    return static_cast<int64_t>(sizeof(typename decltype(element)::Stored));
  });
}

}  // namespace eplb::cuda
