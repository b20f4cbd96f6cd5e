#include "client/rows/staging.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/client/rows/expert_world.h"

namespace eplb {

namespace {

std::vector<TensorShape> Shapes() {
  return {{.name = "w", .role = TensorRole::kWeight, .row_bytes = 65, .row_stride = 65},
          {.name = "m", .role = TensorRole::kState, .row_bytes = 64, .row_stride = 64}};
}

Topology MakeTopology() {
  return *Topology::Make({.num_layers = 3, .num_experts = 8, .num_slots = 10, .num_gpus = 4});
}

TEST(StagingLayoutTest, SenderAndReceiverAgreeOnEveryOffsetAndNothingOverlaps) {
  const uint32_t seed = 99;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const Topology topology = MakeTopology();
  std::vector<std::unique_ptr<ExpertMemory>> memories;
  for (int32_t gpu = 0; gpu < 4; ++gpu) {
    memories.push_back(std::make_unique<ExpertMemory>(topology, GpuId{gpu}, Shapes()));
  }
  for (int32_t turn = 0; turn < 20; ++turn) {
    const auto plan = PlanMigration(
        RandomPlacement(random, topology), RandomPlacement(random, topology), {},
        {.weight_bytes = 65, .state_bytes = 64, .state_residency = StateResidency::kWithPrimary});
    ASSERT_TRUE(plan.ok());
    // (destination, row) -> offset and name, from each side's own tensors.
    std::map<std::pair<int32_t, int32_t>, std::pair<int64_t, std::string>> sent;
    std::map<std::pair<int32_t, int32_t>, std::pair<int64_t, std::string>> arrived;
    for (int32_t gpu = 0; gpu < 4; ++gpu) {
      const TensorsByLayer tensors(3, memories[gpu]->tensors());
      const auto layout = LayOutStaging(*plan, topology, tensors, GpuId{gpu});
      ASSERT_TRUE(layout.ok()) << layout.status();
      int64_t end = 0;
      for (const StagedRow& row : layout->rows) {
        const int32_t destination = row.transfer->destination.value;
        const auto value = std::make_pair(row.offset, row.tensor->name);
        if (row.transfer->source.value == gpu) sent[{destination, row.row}] = value;
        if (destination != gpu) continue;
        arrived[{destination, row.row}] = value;
        EXPECT_EQ(row.offset % kStagingAlignment, 0);
        EXPECT_EQ(row.offset, end) << "rows follow each other";
        end = row.offset + RoundUpToStaging(row.tensor->row_bytes);
      }
      EXPECT_EQ(layout->used_bytes[gpu], end);
    }
    EXPECT_EQ(sent, arrived);
  }
}

TEST(StagingLayoutTest, PlanOutsideTheTopologyIsRefused) {
  const Topology topology = MakeTopology();
  const ExpertMemory memory(topology, GpuId{0}, Shapes());
  const TensorsByLayer tensors(3, memory.tensors());
  const Transfer good{.layer = LayerId{0},
                      .expert = ExpertId{1},
                      .source = GpuId{0},
                      .destination = GpuId{1},
                      .source_slot = SlotId{1},
                      .weight_slots = {SlotId{3}},
                      .round = 0};
  const auto check = [&](const Transfer& transfer) {
    MigrationPlan plan;
    plan.transfers = {transfer};
    return LayOutStaging(plan, topology, tensors, GpuId{0}).status();
  };
  EXPECT_TRUE(check(good).ok()) << check(good);
  Transfer bad = good;
  bad.layer = LayerId{3};
  EXPECT_EQ(check(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.destination = GpuId{4};
  EXPECT_EQ(check(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.source_slot = SlotId{3};
  EXPECT_EQ(check(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.weight_slots = {SlotId{2}};
  EXPECT_EQ(check(bad).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace

}  // namespace eplb
