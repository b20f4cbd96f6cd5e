#include "proto/wire/layer_list.h"

#include <gtest/gtest.h>

namespace eplb::wire {
namespace {

TEST(LayerListTest, CopiesShareUntilOneIsChanged) {
  const LayerPlacement layer =
      Placement::Static(*Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4}))
          .Layer(LayerId{1});
  LayerList first = {layer};
  LayerList second = first;
  EXPECT_TRUE(second.SharesWith(first));
  second.push_back(layer);
  EXPECT_FALSE(second.SharesWith(first));
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(second.size(), 2u);
  second.front().replica_rank[0] = 9;
  EXPECT_EQ(first.front(), layer);
  EXPECT_NE(first, second);
  EXPECT_FALSE(LayerList().SharesWith(LayerList()));
  EXPECT_EQ(LayerList(), LayerList());
}

}  // namespace
}  // namespace eplb::wire
