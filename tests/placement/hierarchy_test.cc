#include "placement/hierarchy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb {
namespace {

using ::testing::HasSubstr;

Topology Shape(int32_t nodes, int32_t groups, int32_t experts = 12) {
  return *Topology::Make({.num_layers = 1,
                          .num_experts = experts,
                          .num_slots = 12,
                          .num_gpus = 12,
                          .num_nodes = nodes,
                          .num_groups = groups});
}

TEST(HierarchyTest, StrictByDefaultWhereGroupsFitOnNodes) {
  EXPECT_EQ(DefaultHierarchy(Shape(2, 4)), Hierarchy::kStrict);
  EXPECT_EQ(DefaultHierarchy(Shape(4, 4)), Hierarchy::kStrict);
  EXPECT_EQ(DefaultHierarchy(Shape(4, 2)), Hierarchy::kNone);
  EXPECT_EQ(DefaultHierarchy(Shape(1, 4)), Hierarchy::kNone);
  EXPECT_EQ(DefaultHierarchy(Shape(1, 1)), Hierarchy::kNone);
}

TEST(HierarchyTest, GroupsThatDoNotFitAreNamed) {
  EXPECT_TRUE(CheckHierarchy(Shape(4, 2), Hierarchy::kNone).ok());
  EXPECT_TRUE(CheckHierarchy(Shape(2, 4), Hierarchy::kSoft).ok());
  EXPECT_THAT(CheckHierarchy(Shape(4, 2), Hierarchy::kStrict).message(),
              HasSubstr("strict needs expert groups in multiples of the 4 nodes, got 2"));
  EXPECT_THAT(CheckHierarchy(Shape(2, 4, 11), Hierarchy::kSoft).message(),
              HasSubstr("soft needs experts in multiples of the 4 expert groups, got 11"));
}

}  // namespace
}  // namespace eplb
