#include "client/migration/derived_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "tests/client/migration/expert_world.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class DerivedTensorsTest : public ::testing::Test {
 protected:
  DerivedTensor Make(const std::string& name, int32_t layer) {
    return {.name = name,
            .layer = LayerId{layer},
            .rebuild = [this, name](int32_t of, std::span<const int32_t> slots) {
              calls_.push_back(absl::StrCat(name, "@", of, ": ", absl::StrJoin(slots, ",")));
              return name == failing_ ? absl::InternalError("no memory") : absl::OkStatus();
            }};
  }

  // 2 layers, 4 experts on 5 slots: GPU 0 has slots 0..2, GPU 1 has 3 and 4.
  const Topology topology_ =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 5, .num_gpus = 2});
  const Placement static_ = Placement::Static(topology_);  // 0 1 2 | 3 0

  MigrationPlan PlanTo(std::vector<int32_t> slots, std::vector<int32_t> ranks) const {
    const LayerPlacement layer{.layer = LayerId{1},
                               .physical_to_logical = std::move(slots),
                               .replica_rank = std::move(ranks)};
    return *PlanMigration(
        static_, *static_.WithLayers({&layer, 1}), {},
        {.weight_bytes = 8, .state_bytes = 8, .state_residency = StateResidency::kWithPrimary});
  }

  std::string failing_;
  std::vector<std::string> calls_;
};

TEST_F(DerivedTensorsTest, EachFaultIsRefusedByTheTensorsName) {
  const ExpertMemory memory(
      topology_, GpuId{0},
      {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 8, .row_stride = 8}});
  const auto refused = [&](std::vector<DerivedTensor> derived) {
    return std::string(CheckDerived(topology_, memory.tensors(), derived).message());
  };
  EXPECT_EQ(refused({Make("a", 0), Make("b", 0), Make("c", 1)}), "");
  EXPECT_EQ(refused({Make("a", 0), Make("a", 1)}), "tensor \"a\": registered twice");
  EXPECT_EQ(refused({Make("layers.1.w", 0)}), "tensor \"layers.1.w\": registered twice");
  EXPECT_EQ(refused({Make("a", 2)}), "tensor \"a\": layer 2 is not in 0..1");
  EXPECT_EQ(refused({{.name = "a", .layer = LayerId{0}, .rebuild = nullptr}}),
            "tensor \"a\": is derived and has no rebuild");
}

TEST_F(DerivedTensorsTest, DescriptionDoesNotDependOnTheOrder) {
  const std::vector<DerivedTensor> one = {Make("b", 1), Make("b", 0), Make("a", 1)};
  const std::vector<DerivedTensor> other = {Make("a", 1), Make("b", 0), Make("b", 1)};
  EXPECT_EQ(DescribeDerived(one), "layer 0 derived b\nlayer 1 derived a\nlayer 1 derived b\n");
  EXPECT_EQ(DescribeDerived(one), DescribeDerived(other));
}

TEST_F(DerivedTensorsTest, SlotsWhoseExpertOrStateChangesAreWritten) {
  // Slots 0 and 2 of GPU 0 exchange their experts, and slot 4 becomes the primary of expert 0.
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{0}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(0, 2))));
  EXPECT_THAT(WrittenSlots(plan, topology_, GpuId{1}),
              ElementsAre(Pair(LayerId{1}, ElementsAre(1))));
}

TEST_F(DerivedTensorsTest, RebuildIsCalledOncePerTensorOfALayerThatChanged) {
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  const std::vector<DerivedTensor> derived = {Make("b", 1), Make("a", 1), Make("c", 0)};
  EXPECT_TRUE(RebuildDerived(derived, plan, topology_, GpuId{0}).ok());
  EXPECT_THAT(calls_, ElementsAre("b@1: 0,2", "a@1: 0,2"));
}

TEST_F(DerivedTensorsTest, FailureIsDataLossNamingTheTensorAndEndsTheCalls) {
  const MigrationPlan plan = PlanTo({2, 1, 0, 3, 0}, {0, 0, 1, 0, 0});
  const std::vector<DerivedTensor> derived = {Make("b", 1), Make("a", 1)};
  failing_ = derived.front().name;
  EXPECT_EQ(
      RebuildDerived(derived, plan, topology_, GpuId{0}),
      absl::DataLossError("tensor \"b\": its rebuild failed for local slots 0, 2: no memory"));
  EXPECT_EQ(calls_.size(), 1U);
}

}  // namespace
}  // namespace eplb
