#include "cuda/kernels/element_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/cuda/gradient_case.h"

namespace eplb::cuda {
namespace {

using testing::Halfword;
using testing::InfinityOf;
using testing::kBrain;
using testing::kHalf;
using testing::Magnitude;

// Every number, both signs, and what lies between it and the next.
template <class Element>
void CheckAll(const Halfword& format) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int bits = 0; bits < InfinityOf(format); ++bits) {
    const auto here = static_cast<float>(Magnitude(format, bits));
    ASSERT_EQ(Element::Load(static_cast<uint16_t>(bits)), here) << bits;
    ASSERT_EQ(Element::Load(static_cast<uint16_t>(bits | 0x8000)), -here) << bits;
    ASSERT_EQ(Element::Round(here), bits);
    ASSERT_EQ(Element::Round(-here), bits | 0x8000);
    // One bit of a half more, behind its last, is a float's; that of the least bfloat16 may not be.
    const double step = bits + 1 == InfinityOf(format)
                            ? Magnitude(format, bits) - Magnitude(format, bits - 1)
                            : Magnitude(format, bits + 1) - Magnitude(format, bits);
    const auto middle = static_cast<float>(static_cast<double>(here) + step / 2);
    ASSERT_EQ(Element::Round(middle), bits + (bits & 1)) << bits;
    ASSERT_EQ(Element::Round(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(Element::Round(std::nextafter(middle, infinity)), bits + 1) << bits;
    ASSERT_EQ(Element::Round(-std::nextafter(middle, infinity)), (bits + 1) | 0x8000) << bits;
  }
  EXPECT_EQ(Element::Round(infinity), InfinityOf(format));
  EXPECT_EQ(Element::Round(std::numeric_limits<float>::max()), InfinityOf(format));
  EXPECT_EQ(Element::Load(static_cast<uint16_t>(InfinityOf(format) | 0x8000)), -infinity);
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), BitsAs<float>(0x7f800001U),
                          BitsAs<float>(0xffffffffU)}) {
    EXPECT_EQ(Element::Round(nan), 0x7fff);
    EXPECT_TRUE(std::isnan(Element::Load(Element::Round(nan))));
  }
}

TEST(ElementTest, EveryFloat16IsReadAndItsNeighbourhoodRoundedToEven) {
  CheckAll<Float16Element>(kHalf);
}

TEST(ElementTest, EveryBfloat16IsReadAndItsNeighbourhoodRoundedToEven) {
  CheckAll<Bfloat16Element>(kBrain);
}

TEST(ElementTest, WhatIsNoNumberHasOneFormInEachType) {
  for (const uint32_t nan : {0x7f800001U, 0x7fc00000U, 0xffc00000U, 0xffffffffU}) {
    EXPECT_EQ(BitsAs<uint32_t>(Float32Element::Round(BitsAs<float>(nan))), 0x7fffffffU);
    const auto wide = BitsAs<double>(uint64_t{nan | 0x7ff00000U} << 32 | 1);
    EXPECT_EQ(BitsAs<uint64_t>(Float64Element::Round(wide)), 0x7fffffffffffffffU);
  }
  EXPECT_EQ(BitsAs<uint32_t>(Float32Element::Round(-0.0F)), 0x80000000U);
  EXPECT_EQ(Float64Element::Round(-std::numeric_limits<double>::infinity()),
            -std::numeric_limits<double>::infinity());
}

TEST(ElementTest, SizesAreThoseOfTheTypes) {
  EXPECT_EQ(ElementBytes(ElementType::kFloat32), 4);
  EXPECT_EQ(ElementBytes(ElementType::kFloat64), 8);
  EXPECT_EQ(ElementBytes(ElementType::kBfloat16), 2);
  EXPECT_EQ(ElementBytes(ElementType::kFloat16), 2);
}

}  // namespace
}  // namespace eplb::cuda
