// The contract of the executor over every transport. The claims are in executor_contract.cc and run
// against each kind that instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/clock.h"

#include "client/rows/executor.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {

using MakeWorld = std::function<Transports(int32_t world_size, int64_t staging_bytes)>;

inline Topology MakeTopology(int32_t layers, int32_t experts, int32_t slots, int32_t gpus) {
  return *Topology::Make({.num_layers = layers,
                          .num_experts = experts,
                          .num_slots = slots,
                          .num_gpus = gpus,
                          .num_nodes = gpus % 2 == 0 ? 2 : 1});
}

inline std::vector<TensorShape> Shapes() {
  return {{.name = "w1", .role = TensorRole::kWeight, .row_bytes = 1000, .row_stride = 1000},
          {.name = "w2", .role = TensorRole::kWeight, .row_bytes = 77, .row_stride = 128},
          {.name = "moment", .role = TensorRole::kState, .row_bytes = 640, .row_stride = 700}};
}

struct EpGroupOptions {
  int32_t num_ep_groups = 1;
  int32_t layers_per_chunk = 1000;
  MakeQueue make_queue = nullptr;  // null: the host's
  std::vector<TensorShape> shapes = Shapes();
};

// An EP group of ranks with memory, executors and a current placement.
class EpGroup {
 public:
  EpGroup(const Topology& topology, StateResidency residency, const MakeWorld& make,
          const EpGroupOptions& more = {})
      : topology_(topology), residency_(residency), num_ep_groups_(more.num_ep_groups) {
    const int32_t ranks = more.num_ep_groups * topology.num_gpus();
    std::vector<ExecutorOptions> options;
    int64_t staging = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const GpuId gpu{rank % topology.num_gpus()};
      memories_.push_back(
          std::make_unique<ExpertMemory>(topology, gpu, more.shapes, more.make_queue));
      std::vector<RankId> ep_group;
      for (int32_t peer = rank - gpu.value; std::ssize(ep_group) < topology.num_gpus(); ++peer) {
        ep_group.push_back(RankId{peer});
      }
      options.push_back({.topology = topology,
                         .gpu = gpu,
                         .ep_group = std::move(ep_group),
                         .layers_per_chunk = more.layers_per_chunk});
      staging = *StagingBytes(options.back(), memories_.back()->tensors());
    }
    Transports transports = make(ranks, staging);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto executor =
          Executor::Make(options[rank], memories_[rank]->tensors(), std::move(transports[rank]),
                         more.make_queue == nullptr ? cuda::MakeHostRowQueue() : more.make_queue());
      EXPECT_TRUE(executor.ok()) << executor.status();
      executors_.push_back(*std::move(executor));
    }
  }

  int32_t num_ranks() const { return num_ep_groups_ * topology_.num_gpus(); }
  Executor& executor(int32_t rank) { return *executors_[rank]; }

  void Fill(const Placement& placement) {
    for (auto& memory : memories_) memory->Fill(placement, residency_);
  }
  int64_t CountWrong(const Placement& placement) const {
    int64_t wrong = 0;
    for (const auto& memory : memories_) wrong += memory->CountWrong(placement, residency_);
    return wrong;
  }
  std::vector<std::vector<std::vector<std::byte>>> Snapshot() const {
    std::vector<std::vector<std::vector<std::byte>>> all;
    for (const auto& memory : memories_) all.push_back(memory->Read());
    return all;
  }

  MigrationPlan Plan(const Placement& current, const Placement& target) const {
    const ExpertBytes bytes = *CheckTensors(topology_, GpuId{0}, memories_.front()->tensors());
    const auto plan = PlanMigration(
        current, target, {},
        {.weight_bytes = bytes.weight, .state_bytes = bytes.state, .state_residency = residency_});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  // Every rank stages on its own thread; a rank in `absent` does not.
  std::vector<absl::StatusOr<Executor::Staged>> Stage(const MigrationPlan& plan, uint64_t post_id,
                                                      int32_t absent = -1,
                                                      absl::Duration timeout = absl::Seconds(30)) {
    std::vector<absl::StatusOr<Executor::Staged>> results(num_ranks(), Executor::Staged{});
    RunRanks(num_ranks(), [&](int32_t rank) {
      if (rank != absent) {
        results[rank] =
            executors_[rank]->Stage(plan, {.post_id = post_id, .deadline = absl::Now() + timeout});
      }
    });
    return results;
  }
  void Commit() {
    for (auto& executor : executors_) EXPECT_TRUE(executor->Commit().ok());
  }
  void Discard() {
    for (auto& executor : executors_) executor->Discard();
  }

 private:
  const Topology topology_;
  const StateResidency residency_;
  const int32_t num_ep_groups_;
  std::vector<std::unique_ptr<ExpertMemory>> memories_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

struct ExecutorKind {
  const char* name;
  MakeWorld make;
  StateResidency residency;
  // Queue of the memory that experts and staging lie in; null: the host's.
  MakeQueue queue = nullptr;
};

class ExecutorContractTest : public ::testing::TestWithParam<ExecutorKind> {
 protected:
  void SetUp() override { SkipWithout(GetParam().queue); }
  static EpGroup MakeEpGroup(const Topology& topology, int32_t num_ep_groups = 1) {
    return {topology,
            GetParam().residency,
            GetParam().make,
            {.num_ep_groups = num_ep_groups, .make_queue = GetParam().queue}};
  }
};

}  // namespace eplb
