#include "placement/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

TEST(DigestTest, EncodingIsTheDocumentedOne) {
  IndexMatrix slots(1, 3);
  slots << 1, 0, 1;
  const Topology topology = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 3});
  // SHA-256 of "eplb.placement.v1" and little-endian int32 1 2 3 1 1 1 2 | 1 0 1 | 1 2 | 1 -1 0 2.
  EXPECT_EQ(DigestOf(*Placement::FromSlots(topology, slots)).Hex(),
            "1d1c11f1fa420ad8ba99ebd8db8db3a55f90f865698b60e5474856d549406cef");
}

TEST(DigestTest, Sha256IsTheStandardOne) {
  EXPECT_EQ(Sha256("abc").Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(DigestTest, DiffersExactlyWhenPlacementsDiffer) {
  constexpr uint64_t kSeed = 40;
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const Topology topology = RandomTopology(random);
    const Placement a = RandomPlacement(random, topology);
    const Placement b = SwapSlots(random, a, Pick(random, 0, 2));
    ASSERT_EQ(DigestOf(a) == DigestOf(b), a == b) << "seed " << kSeed << " case " << i;
  }
}

TEST(DigestTest, DiffersWhenOnlyNodesDiffer) {
  const TopologyOptions options{.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 4};
  TopologyOptions two_nodes = options;
  two_nodes.num_nodes = 2;
  EXPECT_NE(DigestOf(Placement::Static(*Topology::Make(options))),
            DigestOf(Placement::Static(*Topology::Make(two_nodes))));
}

TEST(DigestTest, HexReadsBack) {
  const Digest digest = Sha256("x");
  EXPECT_EQ(*Digest::FromHex(digest.Hex()), digest);
  EXPECT_THAT(Digest::FromHex("abcd").status().message(), HasSubstr("64"));
  EXPECT_THAT(Digest::FromHex(std::string(64, 'g')).status().message(),
              HasSubstr("only hexadecimal"));
}

TEST(DigestTest, VoteBitsAreTheFirst63AndNeverZero) {
  Digest digest;
  EXPECT_EQ(digest.VoteBits(), 1);
  digest.bytes[7] = 1;  // the 64th bit, which a vote leaves out
  EXPECT_EQ(digest.VoteBits(), 1);
  digest.bytes[7] = 6;
  EXPECT_EQ(digest.VoteBits(), 3);
  digest.bytes.fill(0xff);
  EXPECT_EQ(digest.VoteBits(), INT64_MAX);
}

}  // namespace
}  // namespace eplb
