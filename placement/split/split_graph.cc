#include "placement/split/split_graph.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/split/split_body.h"

namespace eplb {
namespace {

std::vector<int32_t> GpuOfSlot(const Topology& topology) {
  std::vector<int32_t> gpus;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    gpus.insert(gpus.end(), AsIndex(topology.SlotsOf(GpuId{gpu})), gpu);
  }
  return gpus;
}

}  // namespace

std::vector<int64_t> SplitSpeeds(std::span<const double> speeds) {
  const double fastest = *std::ranges::max_element(speeds);
  const bool equal = std::ranges::all_of(
      speeds, [fastest](double speed) { return speed == 0 || speed == fastest; });
  std::vector<int64_t> integers;
  for (const double speed : speeds) {
    const double scaled = equal ? 1 : speed / fastest * static_cast<double>(kMaxSplitSpeed);
    integers.push_back(speed == 0 ? 0 : std::max<int64_t>(1, std::llround(scaled)));
  }
  return integers;
}

SplitLayerBuilder::SplitLayerBuilder(const Topology& topology)
    : SplitLayerBuilder(GpuOfSlot(topology), topology.num_gpus()) {}

SplitLayerBuilder::SplitLayerBuilder(std::vector<int32_t> gpu_of_slot, int32_t num_gpus)
    : gpu_of_slot_(std::move(gpu_of_slot)),
      part_on_gpu_(AsIndex(num_gpus), -1),
      place_(gpu_of_slot_.size()) {
  Start();
}

void SplitLayerBuilder::Start() {
  for (std::vector<int32_t>* table :
       {&fixed_expert_, &fixed_gpu_, &expert_, &num_replicas_, &expert_gpu_, &expert_slots_,
        &slots_before_, &expert_of_, &outer_expert_, &inner_expert_, &shared_slot_, &shared_among_,
        &shared_place_, &replica_slot_}) {
    table->clear();
  }
  first_of_expert_.assign(1, 0);
  first_slot_.assign(1, 0);
  slot_source_.assign(gpu_of_slot_.size(), -1);
}

void SplitLayerBuilder::Add(std::span<const int32_t> slots) {
  const auto id = static_cast<int32_t>(first_slot_.size()) - 1;
  const auto first = static_cast<int32_t>(expert_gpu_.size());
  replica_slot_.insert(replica_slot_.end(), slots.begin(), slots.end());
  first_slot_.push_back(static_cast<int32_t>(replica_slot_.size()));
  for (const int32_t slot : slots) {
    const int32_t gpu = gpu_of_slot_[AsIndex(slot)];
    int32_t& part = part_on_gpu_[AsIndex(gpu)];
    // The table is not cleared between experts: an entry counts if it is a part of this expert.
    if (part < first || part >= std::ssize(expert_gpu_) || expert_gpu_[AsIndex(part)] != gpu) {
      part = static_cast<int32_t>(expert_gpu_.size());
      expert_gpu_.push_back(gpu);
      expert_slots_.push_back(0);
    }
    place_[AsIndex(slot)] = expert_slots_[AsIndex(part)]++;
    slot_source_[AsIndex(slot)] = 2 * part + 1;
  }
  if (std::ssize(expert_gpu_) == first + 1) {
    for (const int32_t slot : slots) slot_source_[AsIndex(slot)] = 2 * id;
    fixed_expert_.push_back(id);
    fixed_gpu_.push_back(expert_gpu_.back());
    expert_gpu_.pop_back();
    expert_slots_.pop_back();
    return;
  }
  int32_t before = 0;
  for (size_t part = AsIndex(first); part < expert_gpu_.size(); ++part) {
    slots_before_.push_back(before);
    expert_of_.push_back(static_cast<int32_t>(expert_.size()));
    before += expert_slots_[part];
  }
  expert_.push_back(id);
  num_replicas_.push_back(before);
  first_of_expert_.push_back(static_cast<int32_t>(expert_gpu_.size()));
}

SplitLayerTables SplitLayerBuilder::AppendTo(std::vector<int32_t>& tables, bool with_inner) {
  NumberParts();
  if (with_inner) FindInner();
  FindShared();
  const SplitLayerTables sizes{.begin = std::ssize(tables),
                               .num_replicated = static_cast<int32_t>(expert_.size()),
                               .num_fixed = static_cast<int32_t>(fixed_expert_.size()),
                               .num_parts = static_cast<int32_t>(expert_gpu_.size()),
                               .num_inner = static_cast<int32_t>(inner_expert_.size()),
                               .num_shared = static_cast<int32_t>(shared_slot_.size())};
  for (const std::vector<int32_t>* table :  // in the order of LayerAt
       {&fixed_expert_, &fixed_gpu_,    &expert_,       &num_replicas_, &first_of_expert_,
        &expert_part_,  &expert_gpu_,   &expert_slots_, &slots_before_, &expert_of_,
        &outer_expert_, &inner_expert_, &first_on_gpu_, &ring_first_,   &ring_size_,
        &part_place_,   &slot_source_,  &shared_slot_,  &shared_among_, &shared_place_,
        &first_slot_,   &replica_slot_}) {
    tables.insert(tables.end(), table->begin(), table->end());
  }
  return sizes;
}

// Numbers the parts GPU by GPU, those of a GPU by expert.
void SplitLayerBuilder::NumberParts() {
  first_on_gpu_.assign(part_on_gpu_.size() + 1, 0);
  for (const int32_t gpu : expert_gpu_) ++first_on_gpu_[AsIndex(gpu) + 1];
  std::partial_sum(first_on_gpu_.begin(), first_on_gpu_.end(), first_on_gpu_.begin());
  next_.assign(first_on_gpu_.begin(), first_on_gpu_.end() - 1);
  for (std::vector<int32_t>* table : {&expert_part_, &ring_first_, &ring_size_, &part_place_}) {
    table->resize(expert_gpu_.size());
  }
  for (size_t i = 0; i < expert_gpu_.size(); ++i) {
    const int32_t part = next_[AsIndex(expert_gpu_[i])]++;
    expert_part_[i] = part;
    const auto expert = AsIndex(expert_of_[i]);
    ring_first_[AsIndex(part)] = first_of_expert_[expert];
    ring_size_[AsIndex(part)] = first_of_expert_[expert + 1] - first_of_expert_[expert];
    part_place_[AsIndex(part)] = static_cast<int32_t>(i);
  }
}

// Lists the inner experts for the first of several experts with the same GPUs. Otherwise a layer
// whose GPUs hold all experts has as many pairs as the square of its experts.
void SplitLayerBuilder::FindInner() {
  num_found_.resize(expert_.size());  // parts on GPUs of expert i
  const auto num_parts = [this](int32_t expert) {
    return first_of_expert_[AsIndex(expert) + 1] - first_of_expert_[AsIndex(expert)];
  };
  for (int32_t i = 0; i < std::ssize(expert_); ++i) {
    const auto visit = [&](const auto& work) {
      for (int32_t index = first_of_expert_[AsIndex(i)]; index < first_of_expert_[AsIndex(i) + 1];
           ++index) {
        const size_t gpu = AsIndex(expert_gpu_[AsIndex(index)]);
        for (int32_t part = first_on_gpu_[gpu]; part < first_on_gpu_[gpu + 1]; ++part) {
          work(expert_of_[AsIndex(part_place_[AsIndex(part)])]);
        }
      }
    };
    visit([&](int32_t other) { num_found_[AsIndex(other)] = 0; });
    const size_t begin = inner_expert_.size();
    bool is_first = true;
    visit([&](int32_t other) {
      if (++num_found_[AsIndex(other)] < num_parts(other) || other == i) return;
      is_first = is_first && (other > i || num_parts(other) < num_parts(i));
      inner_expert_.push_back(other);
    });
    if (!is_first) inner_expert_.resize(begin);
    outer_expert_.resize(inner_expert_.size(), i);
  }
}

void SplitLayerBuilder::FindShared() {
  for (size_t slot = 0; slot < slot_source_.size(); ++slot) {
    int32_t& source = slot_source_[slot];
    int32_t among = 0;
    if (source < 0) {
      source = 0;
    } else if ((source & 1) != 0) {
      among = expert_slots_[AsIndex(source >> 1)];
      source = 2 * expert_part_[AsIndex(source >> 1)] + 1;
    } else {
      among = first_slot_[AsIndex(source >> 1) + 1] - first_slot_[AsIndex(source >> 1)];
    }
    if (among == 1) continue;
    shared_slot_.push_back(static_cast<int32_t>(slot));
    shared_among_.push_back(among);
    shared_place_.push_back(among == 0 ? 0 : place_[slot]);
  }
}

SplitLayer SplitLayerBuilder::Finish(std::span<const int64_t> speeds) {
  tables_.clear();
  sizes_ = AppendTo(tables_, /*with_inner=*/false);
  const SplitTables tables{.shape = {.num_layers = 1,
                                     .num_experts = static_cast<int32_t>(first_slot_.size()) - 1,
                                     .num_slots = static_cast<int32_t>(gpu_of_slot_.size()),
                                     .num_gpus = static_cast<int32_t>(speeds.size())},
                           .equal_speeds = *std::ranges::max_element(speeds) == 1,
                           .speeds = speeds.data(),
                           .layers = &sizes_,
                           .tables = tables_.data()};
  return tables.Layer(0);
}

absl::Status CheckSplittable(const Placement& placement, const BatchSplitOptions& options) {
  const int32_t num_gpus = placement.topology().num_gpus();
  if (num_gpus > SplitGraph::kMaxGpus) {
    return InvalidInput("an EP group of ", num_gpus, " GPUs, batches are split over at most ",
                        SplitGraph::kMaxGpus);
  }
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"slack", options.slack}, {"tolerance", options.tolerance}}) {
    if (!(value >= 0 && value <= 1)) return InvalidInput(name, " is ", value, ", expected 0..1");
  }
  if (options.speeds == nullptr) return absl::OkStatus();
  if (options.speeds->num_gpus() != num_gpus) {
    return InvalidInput(options.speeds->num_gpus(), " GPU speeds, the placement has ", num_gpus,
                        " GPUs");
  }
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    if (options.speeds->Usable(GpuId{gpu}) || !placement.Holds(GpuId{gpu})) continue;
    return InvalidInput("GPU ", gpu, " is unusable, but the placement has experts on it");
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitGraph> SplitGraph::Make(const Placement& placement,
                                            const BatchSplitOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckSplittable(placement, options));
  const Topology& topology = placement.topology();
  SplitGraph graph;
  graph.shape_ = {.num_layers = topology.num_layers(),
                  .num_experts = topology.num_experts(),
                  .num_slots = topology.num_slots(),
                  .num_gpus = topology.num_gpus()};
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    graph.shape_.max_slots_of_gpu =
        std::max(graph.shape_.max_slots_of_gpu, topology.SlotsOf(GpuId{gpu}));
  }
  const auto units = [](double part) {
    return static_cast<int64_t>(part * static_cast<double>(kSplitSlackUnit));
  };
  graph.margins_ = {.slack = units(options.slack), .tolerance = units(options.tolerance)};
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  graph.speeds_ = SplitSpeeds((options.speeds == nullptr ? equal : *options.speeds).speeds());
  SplitLayerBuilder builder(topology);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    builder.Start();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      builder.Add(placement.ReplicasOf(LayerId{layer}, ExpertId{expert}));
    }
    graph.layers_.push_back(builder.AppendTo(graph.tables_, /*with_inner=*/true));
  }
  return graph;
}

SplitTables SplitGraph::Tables() const {
  return {.shape = shape_,
          .equal_speeds = *std::ranges::max_element(speeds_) == 1,
          .margins = margins_,
          .num_tables = std::ssize(tables_),
          .speeds = speeds_.data(),
          .layers = layers_.data(),
          .tables = tables_.data()};
}

}  // namespace eplb
