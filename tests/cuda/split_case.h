// Counts of several sources at random on a random placement, and the quotas that BatchSplitter and
// OwnQuotas give: for the host and the device test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/split.h"
#include "placement/split/batch_split.h"
#include "placement/split/source_quotas.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/split/random_batch.h"

namespace eplb::cuda::testing {

class SplitCase;

// Output of a split.
struct SplitResults {
  explicit SplitResults(const SplitCase& c);

  std::vector<int64_t> quotas;
  std::vector<int64_t> own;
  std::vector<int32_t> refused;
  std::vector<SplitPeak> peaks;

  friend bool operator==(const SplitResults&, const SplitResults&) = default;
};

class SplitCase {
 public:
  SplitCase(eplb::Random& random, const Topology& topology)
      : SplitCase(random, eplb::RandomPlacement(random, topology), /*may_add_gpus=*/true) {}
  // May put unusable GPUs between those of the placement.
  SplitCase(eplb::Random& random, const Placement& placement, bool may_add_gpus = false)
      : placement_(placement),
        graph_(MakeGraph(random, may_add_gpus)),
        tables_(Packed(graph_.Tables())),
        num_sources_(placement_.topology().num_gpus()) {
    const Topology& topology = placement_.topology();
    const auto num_experts = static_cast<size_t>(topology.num_experts());
    counts_.resize(static_cast<size_t>(num_sources_) * static_cast<size_t>(num_layers()) *
                   num_experts);
    for (size_t layer = 0; layer < static_cast<size_t>(num_layers()); ++layer) {
      std::vector<int64_t> sums = eplb::RandomCounts(random, topology.num_experts());
      while (std::reduce(sums.begin(), sums.end()) > kMaxNarrowTokens) {
        for (int64_t& sum : sums) sum /= 16;
      }
      for (size_t expert = 0; expert < num_experts; ++expert) {
        // A third to each of three sources, and the rest to the first.
        for (int part = 0; part < 3; ++part) {
          const auto source = static_cast<size_t>(eplb::Pick(random, 0, num_sources_ - 1));
          counts_[Row(source, layer) + expert] += sums[expert] / 3;
        }
        counts_[Row(0, layer) + expert] += sums[expert] % 3;
      }
    }
  }

  int32_t num_layers() const { return graph_.num_layers(); }
  int32_t num_slots() const { return graph_.num_slots(); }
  int32_t num_sources() const { return num_sources_; }
  std::vector<int64_t>& counts() { return counts_; }
  const std::vector<int64_t>& counts() const { return counts_; }

  const std::vector<TableUnit>& tables() const { return tables_; }

  // Arguments for all layers, for the last source.
  SplitArgs ArgsFor(SplitResults& results) const {
    return {.shape = graph_.Tables().shape,
            .tables = reinterpret_cast<const std::byte*>(tables_.data()),
            .num_layers = num_layers(),
            .counts = counts_.data(),
            .num_sources = num_sources_,
            .quotas = results.quotas.data(),
            .peaks = results.peaks.data(),
            .refused = results.refused.data(),
            .own = results.own.data(),
            .source = num_sources_ - 1,
            .gpus_of_node = num_sources_ / placement_.topology().num_nodes()};
  }

  // By the library's calls, layer by layer.
  SplitResults Expected(int32_t source) const {
    SplitResults results(*this);
    BatchSplitter splitter(graph_);
    const auto num_experts = static_cast<size_t>(graph_.num_experts());
    for (int32_t i = 0; i < num_layers(); ++i) {
      const LayerId layer{i};
      std::vector<int64_t> sums(num_experts);
      std::vector<int64_t> by_gpu;
      for (int32_t rank = 0; rank < num_sources_; ++rank) {
        for (size_t expert = 0; expert < num_experts; ++expert) {
          by_gpu.push_back(
              counts_[Row(static_cast<size_t>(rank), static_cast<size_t>(i)) + expert]);
          sums[expert] += by_gpu.back();
        }
      }
      const auto slots = static_cast<size_t>(num_slots());
      const size_t first_slot = static_cast<size_t>(i) * slots;
      const std::span<int64_t> quotas = std::span(results.quotas).subspan(first_slot, slots);
      results.peaks[static_cast<size_t>(i)] = splitter.Split(layer, sums, quotas)->peak;
      results.refused[static_cast<size_t>(i)] = kNotRefused;
      OwnQuotas({placement_, layer, quotas}, by_gpu, GpuId{source},
                std::span(results.own).subspan(first_slot, slots));
    }
    return results;
  }

 private:
  SplitGraph MakeGraph(eplb::Random& random, bool may_add_gpus) {
    const int32_t num_gpus = placement_.topology().num_gpus();
    eplb::RandomGpus gpus = eplb::WithRandomSpeeds(random, placement_);
    while (!may_add_gpus && gpus.placement.topology().num_gpus() > num_gpus) {
      gpus = eplb::WithRandomSpeeds(random, placement_);
    }
    placement_ = gpus.placement;
    const double slack = eplb::Pick(random, 0, 1) == 0 ? 0.01 : 0;
    const double tolerance = eplb::Pick(random, 0, 2) == 0 ? 0.02 : 0;
    return *SplitGraph::Make(placement_,
                             {.speeds = &gpus.speeds, .slack = slack, .tolerance = tolerance});
  }

  static std::vector<TableUnit> Packed(const SplitTables& tables) {
    std::vector<TableUnit> units(static_cast<size_t>(SplitTableBytes(tables.shape)) /
                                 sizeof(TableUnit));
    EXPECT_TRUE(PackSplitTables(tables, std::as_writable_bytes(std::span(units))).ok());
    return units;
  }

  size_t Row(size_t source, size_t layer) const {
    return (source * static_cast<size_t>(num_layers()) + layer) *
           static_cast<size_t>(graph_.num_experts());
  }

  Placement placement_;
  SplitGraph graph_;
  std::vector<TableUnit> tables_;
  int32_t num_sources_;
  std::vector<int64_t> counts_;  // [num_sources, num_layers, num_experts]
};

inline SplitResults::SplitResults(const SplitCase& c)
    : quotas(static_cast<size_t>(c.num_layers()) * static_cast<size_t>(c.num_slots()), -9),
      own(quotas.size(), -9),
      refused(static_cast<size_t>(c.num_layers()), -9),
      peaks(refused.size()) {}

}  // namespace eplb::cuda::testing
