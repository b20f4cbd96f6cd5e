// One rank of an EP group whose batches a SplitLoop splits, with the slots and sums of the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/split_loop.h"
#include "cuda/kernels/route_body.h"
#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/placement/random_placement.h"

namespace eplb {

inline constexpr int32_t kLoopLayers = 2;
inline constexpr int32_t kLoopTopK = 2;
inline constexpr int64_t kLoopTokens = 700;  // two chunks of choices

// One rank of an EP group; the counts of the others are drawn.
class SplitLoopWorld {
 public:
  SplitLoopWorld(Random& random, int32_t num_gpus, absl::Duration deadline,
                 bool split_on_gpu = false)
      : SplitLoopWorld(random, Shape(random, num_gpus), deadline, split_on_gpu) {}
  SplitLoopWorld(Random& random, const TopologyOptions& shape, absl::Duration deadline,
                 bool split_on_gpu)
      : random_(random),
        topology_(*Topology::Make(shape)),
        self_{Pick(random, 0, shape.num_gpus - 1)},
        placement_(std::make_shared<const Placement>(RandomPlacement(random, topology_))),
        splits_(placement_, 0),
        replicas_(std::vector<int32_t>(kLoopLayers * S())),
        first_replica_(std::vector<int32_t>(kLoopLayers * (E() + 1))),
        numbers_(std::vector<int32_t>(kLoopLayers)),
        ids_(std::vector<int32_t>(kLoopTokens * kLoopTopK)),
        row_(std::vector<int64_t>(E())),
        gathered_(std::vector<int64_t>(E() * static_cast<size_t>(shape.num_gpus))),
        slots_(std::vector<int32_t>(kLoopTokens * kLoopTopK)),
        tables_{.num_layers = kLoopLayers,
                .num_experts = topology_.num_experts(),
                .num_slots = topology_.num_slots(),
                .replicas = replicas_.data(),
                .first_replica = first_replica_.data()},
        queue_(*cuda::MakeStreamRowQueue({})) {
    WriteTables();
    auto loop = SplitLoop::Make({.max_tokens = kLoopTokens,
                                 .top_k = kLoopTopK,
                                 .deadline = deadline,
                                 .split_on_gpu = split_on_gpu},
                                {.topology = topology_,
                                 .self = self_,
                                 .device = 0,
                                 .tables = tables_,
                                 .table_numbers = numbers_.data(),
                                 .newest_numbers = newest_numbers_.data(),
                                 .takes_sums = true,
                                 .splits = splits_,
                                 .queue = *queue_});
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  SplitLoop& loop() { return *loop_; }
  const Placement& placement() const { return *placement_; }

  // The tables are written in place, as a switch does it in the order of a stream.
  void Switch() { SwitchTo(RandomPlacement(random_, topology_)); }
  void SwitchTo(const Placement& placement) {
    placement_ = std::make_shared<const Placement>(placement);
    constexpr LayerId kAll[kLoopLayers] = {LayerId{0}, LayerId{1}};
    if (loop_->gpu_tables() != nullptr) {
      EXPECT_TRUE(loop_->gpu_tables()->Update(*placement_, kAll, /*stream=*/nullptr).ok());
    }
    ShowBeforeTheStream(placement);
    WriteTables();
  }
  // The part of a switch that does not wait for the stream.
  void ShowBeforeTheStream(const Placement& placement) {
    for (int32_t& number : newest_numbers_) __atomic_add_fetch(&number, 1, __ATOMIC_RELEASE);
    splits_.Show(std::make_shared<const Placement>(placement), ++version_);
  }
  absl::Status SetOptions(const SplitOptions& options) {
    EPLB_RETURN_IF_ERROR(SetOptionsBeforeTheStream(options));
    return loop_->gpu_tables()->Renew(/*stream=*/nullptr);
  }
  absl::Status SetOptionsBeforeTheStream(const SplitOptions& options) {
    options_ = options;
    return splits_.SetOptions(options);
  }

  // Draws a batch; is_refused: with a count that no split takes.
  void DrawBatch(bool is_refused = false) {
    host_ids_.clear();
    for (int64_t i = 0; i < num_tokens_ * kLoopTopK; ++i) {
      // Lower experts are chosen more often; one choice in twenty is none.
      const int32_t last = topology_.num_experts() - 1;
      const int32_t chosen = std::min(Pick(random_, 0, last), Pick(random_, 0, last));
      host_ids_.push_back(Pick(random_, 0, 19) == 0 ? -1 : chosen);
    }
    counts_.assign(E() * static_cast<size_t>(topology_.num_gpus()), 0);
    for (int64_t& count : counts_) count = Pick(random_, 0, 3) == 0 ? 0 : Pick(random_, 0, 99);
    auto* const mine = &counts_[static_cast<size_t>(self_.value) * E()];
    if (is_refused) counts_[self_.value == 0 ? E() : 0] = -1;
    std::fill_n(mine, E(), 0);
    for (const int32_t id : host_ids_) {
      if (id >= 0) ++mine[id];
    }
    Write(ids_, host_ids_);
    std::vector<int64_t> others = counts_;  // this rank's row comes from its GPU
    std::fill_n(&others[static_cast<size_t>(self_.value) * E()], E(), -7);
    Write(gathered_, others);
  }

  void SetTokens(int64_t num_tokens) { num_tokens_ = num_tokens; }

  // Puts a batch on the stream.
  absl::Status Launch(int32_t layer, cudaStream_t stream) {
    absl::Status status = loop_->CountFor(layer,
                                          {.expert_ids = ids_.data(),
                                           .num_tokens = num_tokens_,
                                           .top_k = kLoopTopK,
                                           .num_experts = topology_.num_experts()},
                                          row_.data(), stream);
    status.Update(cuda::ToStatus(
        cudaMemcpyAsync(gathered_.data() + static_cast<size_t>(self_.value) * E(), row_.data(),
                        E() * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync"));
    status.Update(loop_->RouteFrom(layer, gathered_.data(), slots_.data(), stream));
    return status;
  }

  std::vector<int32_t> Slots() const {
    std::vector<int32_t> slots = slots_.Read();
    slots.resize(host_ids_.size());
    return slots;
  }

  // Slots by the calls of the CPU: an expert's choices fill its slots, each up to its own quota.
  std::vector<int32_t> SlotsOfTheCpu(int32_t layer) {
    BatchSplits splits(placement_, version_);
    EXPECT_TRUE(splits.SetOptions(options_).ok());
    quotas_.resize(S());
    std::vector<int64_t> own(S());
    const auto figures = splits.Split(LayerId{layer}, {.by_gpu = counts_},
                                      {.self = self_, .quotas = quotas_, .own = own});
    EXPECT_TRUE(figures.ok()) << figures.status();
    figures_ = *figures;
    std::vector<int32_t> slots;
    for (const int32_t id : host_ids_) {
      slots.push_back(cuda::kNoSlot);
      if (id < 0) continue;
      for (const int32_t slot : placement_->ReplicasOf(LayerId{layer}, ExpertId{id})) {
        if (own[static_cast<size_t>(slot)] == 0) continue;
        --own[static_cast<size_t>(slot)];
        slots.back() = slot;
        break;
      }
    }
    return slots;
  }

  // Slots that choices draw, each replica equally likely.
  std::vector<int32_t> DrawnSlots(int32_t layer) const {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < host_ids_.size(); ++i) {
      slots.push_back(cuda::kNoSlot);
      if (host_ids_[i] < 0) continue;
      const auto replicas = placement_->ReplicasOf(LayerId{layer}, ExpertId{host_ids_[i]});
      const int64_t token = self_.value * kLoopTokens + static_cast<int64_t>(i) / kLoopTopK;
      const uint64_t draw = cuda::RouteDraw(cuda::DrawKey(token), host_ids_[i]);
      slots.back() = replicas[static_cast<size_t>(draw * replicas.size() >> 32)];
    }
    return slots;
  }

  // Choices of an expert that went to no slot of it.
  int NumLost(int32_t layer) const {
    const std::vector<int32_t> slots = Slots();
    int lost = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (host_ids_[i] < 0) continue;
      const bool is_slot = slots[i] >= 0 && slots[i] < topology_.num_slots();
      if (!is_slot || placement_->physical_to_logical_map()(layer, slots[i]) != host_ids_[i]) {
        ++lost;
      }
    }
    return lost;
  }

  // Sums of the batch of SlotsOfTheCpu.
  SplitSums SumsOfTheCpu(int32_t layer) const { return *SumsOfSplit(layer, quotas_, *placement_); }
  // Figures of the batch of SlotsOfTheCpu.
  const SplitFigures& figures_of_the_cpu() const { return figures_; }

 private:
  static TopologyOptions Shape(Random& random, int32_t num_gpus) {
    const int32_t experts = Pick(random, 1, 3 * num_gpus);
    const int32_t least = std::max(experts, num_gpus);
    return {.num_layers = kLoopLayers,
            .num_experts = experts,
            .num_slots = Pick(random, least, 2 * least),
            .num_gpus = num_gpus,
            .num_nodes = num_gpus % 4 == 0 ? num_gpus / 4 : 1};
  }
  size_t E() const { return static_cast<size_t>(topology_.num_experts()); }
  size_t S() const { return static_cast<size_t>(topology_.num_slots()); }

  template <class T>
  static void Write(const cuda::testing::OnDevice<T>& to, const std::vector<T>& values) {
    EXPECT_EQ(
        cudaMemcpy(to.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void WriteTables() {
    std::vector<int32_t> replicas;
    std::vector<int32_t> first_replica;
    for (int32_t layer = 0; layer < kLoopLayers; ++layer) {
      const size_t begin = replicas.size();
      for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
        first_replica.push_back(static_cast<int32_t>(replicas.size() - begin));
        const auto slots = placement_->ReplicasOf(LayerId{layer}, ExpertId{expert});
        replicas.insert(replicas.end(), slots.begin(), slots.end());
      }
      first_replica.push_back(static_cast<int32_t>(replicas.size() - begin));
      replicas.resize(begin + S(), cuda::kNoSlot);
    }
    Write(replicas_, replicas);
    Write(first_replica_, first_replica);
    Write(numbers_, newest_numbers_);
  }

  Random& random_;
  const Topology topology_;
  const GpuId self_;
  std::shared_ptr<const Placement> placement_;
  int64_t version_ = 0;
  std::vector<int32_t> newest_numbers_ = std::vector<int32_t>(kLoopLayers);
  BatchSplits splits_;
  cuda::testing::OnDevice<int32_t> replicas_, first_replica_, numbers_, ids_;
  cuda::testing::OnDevice<int64_t> row_, gathered_;
  cuda::testing::OnDevice<int32_t> slots_;
  const DeviceTables tables_;
  int64_t num_tokens_ = kLoopTokens;
  std::vector<int32_t> host_ids_;
  std::vector<int64_t> counts_;  // counts of all ranks
  std::vector<int64_t> quotas_;  // quotas of SlotsOfTheCpu
  SplitOptions options_;
  SplitFigures figures_;
  std::unique_ptr<cuda::RowQueue> queue_;
  std::unique_ptr<SplitLoop> loop_;
};

}  // namespace eplb
