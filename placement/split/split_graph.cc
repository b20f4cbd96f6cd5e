#include "placement/split/split_graph.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/split/split_body.h"

namespace eplb {
namespace {

// Relative to the fastest: of equal ones exactly 1, so that a peak is a number of tokens.
std::vector<int64_t> IntegerSpeeds(const GpuSpeeds& speeds) {
  const double fastest = *std::max_element(speeds.speeds().begin(), speeds.speeds().end());
  bool equal = true;
  for (const double speed : speeds.speeds()) equal = equal && (speed == 0 || speed == fastest);
  std::vector<int64_t> integers;
  for (const double speed : speeds.speeds()) {
    if (speed == 0 || equal) {
      integers.push_back(speed == 0 ? 0 : 1);
      continue;
    }
    const double scaled = std::round(speed / fastest * static_cast<double>(kMaxSplitSpeed));
    integers.push_back(std::max<int64_t>(1, static_cast<int64_t>(scaled)));
  }
  return integers;
}

absl::Status CheckOptions(const Placement& placement, const BatchSplitOptions& options) {
  const int32_t num_gpus = placement.topology().num_gpus();
  if (num_gpus > SplitGraph::kMaxGpus) {
    return absl::InvalidArgumentError(absl::StrCat("an EP group of ", num_gpus,
                                                   " GPUs, batches are split over at most ",
                                                   SplitGraph::kMaxGpus));
  }
  if (!(options.slack >= 0 && options.slack <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("slack is ", options.slack, ", expected 0..1"));
  }
  if (options.speeds == nullptr) return absl::OkStatus();
  if (options.speeds->num_gpus() != num_gpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.speeds->num_gpus(), " GPU speeds, the placement has ", num_gpus, " GPUs"));
  }
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    if (options.speeds->Usable(GpuId{gpu}) || !placement.Holds(GpuId{gpu})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", gpu, " is unusable, but the placement has experts on it"));
  }
  return absl::OkStatus();
}

// An expert's slots on one GPU, in the order of replica rank.
struct Part {
  int32_t gpu;
  std::vector<int32_t> slots;
};

std::vector<Part> PartsOf(const Placement& placement, LayerId layer, ExpertId expert) {
  std::vector<Part> parts;
  for (const int32_t slot : placement.ReplicasOf(layer, expert)) {
    const int32_t gpu = placement.topology().GpuOf(SlotId{slot}).value;
    const auto found = std::find_if(parts.begin(), parts.end(),
                                    [gpu](const Part& part) { return part.gpu == gpu; });
    if (found != parts.end()) {
      found->slots.push_back(slot);
    } else {
      parts.push_back({.gpu = gpu, .slots = {slot}});
    }
  }
  return parts;
}

// The tables of one layer while they are built.
struct LayerBuilder {
  LayerBuilder(int32_t num_gpus, int32_t num_slots)
      : parts_of_gpu(static_cast<size_t>(num_gpus)),
        slot_source(static_cast<size_t>(num_slots), -1) {}

  void Add(int32_t expert_id, const std::vector<Part>& parts) {
    const bool is_fixed = parts.size() == 1;
    if (is_fixed) {
      fixed_expert.push_back(expert_id);
      fixed_gpu.push_back(parts.front().gpu);
    }
    int32_t before = 0;
    for (const Part& part : parts) {
      const auto num_slots = static_cast<int32_t>(part.slots.size());
      const auto index = static_cast<int32_t>(expert_gpu.size());
      for (int32_t i = 0; i < num_slots; ++i) {
        const int32_t slot = part.slots[static_cast<size_t>(i)];
        slot_source[static_cast<size_t>(slot)] = is_fixed ? 2 * expert_id : 2 * index + 1;
        if (num_slots > 1) AddShared(slot, num_slots, i);
      }
      if (is_fixed) return;
      parts_of_gpu[static_cast<size_t>(part.gpu)].push_back(index);
      expert_gpu.push_back(part.gpu);
      expert_slots.push_back(num_slots);
      slots_before.push_back(before);
      part_expert.push_back(static_cast<int32_t>(expert.size()));
      before += num_slots;
    }
    expert.push_back(expert_id);
    num_replicas.push_back(before);
    first_of_expert.push_back(static_cast<int32_t>(expert_gpu.size()));
  }

  void AddShared(int32_t slot, int32_t among, int32_t place) {
    shared_slot.push_back(slot);
    shared_among.push_back(among);
    shared_place.push_back(place);
  }

  // Slots that no expert is in.
  void AddEmptySlots() {
    for (size_t slot = 0; slot < slot_source.size(); ++slot) {
      if (slot_source[slot] >= 0) continue;
      slot_source[slot] = 0;
      AddShared(static_cast<int32_t>(slot), 0, 0);
    }
  }

  // Numbers the parts GPU by GPU; so far they are numbered expert by expert. gpu_part: their
  // numbers so far, GPU by GPU.
  void NumberByGpu(const std::vector<int32_t>& gpu_part) {
    expert_part.resize(gpu_part.size());
    std::vector<int32_t> expert_of(gpu_part.size());
    for (size_t part = 0; part < gpu_part.size(); ++part) {
      const auto index = static_cast<size_t>(gpu_part[part]);
      expert_part[index] = static_cast<int32_t>(part);
      expert_of[part] = part_expert[index];
      part_gpu.push_back(expert_gpu[index]);
    }
    part_expert = std::move(expert_of);
    next_part.resize(gpu_part.size());
    for (size_t i = 0; i < expert.size(); ++i) {
      const auto begin = static_cast<size_t>(first_of_expert[i]);
      const auto end = static_cast<size_t>(first_of_expert[i + 1]);
      for (size_t index = begin; index < end; ++index) {
        const size_t next = index + 1 < end ? index + 1 : begin;
        next_part[static_cast<size_t>(expert_part[index])] = expert_part[next];
      }
    }
    for (int32_t& source : slot_source) {
      if ((source & 1) != 0) source = 2 * expert_part[static_cast<size_t>(source >> 1)] + 1;
    }
  }

  // Of experts with the same GPUs for the first alone: else a layer whose GPUs hold all experts has
  // their square. first_on_gpu: as SplitLayer. After NumberByGpu.
  void FindInner(const std::vector<int32_t>& first_on_gpu) {
    std::vector<int32_t> num_found(expert.size());  // parts on GPUs of the expert at hand
    for (size_t i = 0; i < expert.size(); ++i) {
      const auto visit = [&](const auto& work) {
        for (int32_t index = first_of_expert[i]; index < first_of_expert[i + 1]; ++index) {
          const auto gpu = static_cast<size_t>(expert_gpu[static_cast<size_t>(index)]);
          for (int32_t part = first_on_gpu[gpu]; part < first_on_gpu[gpu + 1]; ++part) {
            work(part_expert[static_cast<size_t>(part)]);
          }
        }
      };
      visit([&](int32_t other) { num_found[static_cast<size_t>(other)] = 0; });
      const auto num_parts = [this](size_t j) {
        return first_of_expert[j + 1] - first_of_expert[j];
      };
      const size_t begin = inner_expert.size();
      bool is_first = true;
      visit([&](int32_t other) {
        const auto j = static_cast<size_t>(other);
        if (++num_found[j] < num_parts(j) || j == i) return;
        is_first = is_first && (j > i || num_parts(j) < num_parts(i));
        inner_expert.push_back(other);
      });
      if (!is_first) inner_expert.resize(begin);
      outer_expert.resize(inner_expert.size(), static_cast<int32_t>(i));
    }
  }

  std::vector<std::vector<int32_t>> parts_of_gpu;
  std::vector<int32_t> fixed_expert, fixed_gpu, expert, num_replicas;
  std::vector<int32_t> first_of_expert = {0};
  std::vector<int32_t> expert_part, expert_gpu, expert_slots, slots_before, part_expert;
  std::vector<int32_t> part_gpu, next_part;
  std::vector<int32_t> outer_expert, inner_expert;
  std::vector<int32_t> slot_source, shared_slot, shared_among, shared_place;
};

// Appends rows one after the other and, before them, where each begins.
std::pair<std::vector<int32_t>, std::vector<int32_t>> Flattened(
    const std::vector<std::vector<int32_t>>& rows) {
  std::vector<int32_t> first = {0};
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    first.push_back(static_cast<int32_t>(all.size()));
  }
  return {std::move(first), std::move(all)};
}

}  // namespace

absl::StatusOr<SplitGraph> SplitGraph::Make(const Placement& placement,
                                            const BatchSplitOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckOptions(placement, options));
  const Topology& topology = placement.topology();
  SplitGraph graph;
  graph.num_experts_ = topology.num_experts();
  graph.num_slots_ = topology.num_slots();
  graph.num_nodes_ = topology.num_nodes();
  graph.slack_ = static_cast<int64_t>(options.slack * static_cast<double>(kSplitSlackUnit));
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  graph.speeds_ = IntegerSpeeds(options.speeds == nullptr ? equal : *options.speeds);
  graph.equal_speeds_ = *std::max_element(graph.speeds_.begin(), graph.speeds_.end()) == 1;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    graph.AddLayer(placement, LayerId{layer});
  }
  return graph;
}

void SplitGraph::AddLayer(const Placement& placement, LayerId layer) {
  LayerBuilder tables(num_gpus(), num_slots_);
  std::vector<std::vector<int32_t>> slots_of_expert;
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    tables.Add(expert, PartsOf(placement, layer, ExpertId{expert}));
    const auto slots = placement.ReplicasOf(layer, ExpertId{expert});
    slots_of_expert.emplace_back(slots.begin(), slots.end());
  }
  tables.AddEmptySlots();
  const auto append = [this](const std::vector<int32_t>& table) {
    const auto begin = std::ssize(tables_);
    tables_.insert(tables_.end(), table.begin(), table.end());
    return begin;
  };
  const auto [first_slot, replica_slot] = Flattened(slots_of_expert);
  const auto [first_on_gpu, gpu_part] = Flattened(tables.parts_of_gpu);
  const std::vector<int32_t> expert_of = tables.part_expert;
  tables.NumberByGpu(gpu_part);
  tables.FindInner(first_on_gpu);
  layers_.push_back({.num_replicated = static_cast<int32_t>(tables.expert.size()),
                     .num_fixed = static_cast<int32_t>(tables.fixed_expert.size()),
                     .num_shared = static_cast<int32_t>(tables.shared_slot.size()),
                     .num_inner = static_cast<int32_t>(tables.inner_expert.size()),
                     .fixed_expert = append(tables.fixed_expert),
                     .fixed_gpu = append(tables.fixed_gpu),
                     .expert = append(tables.expert),
                     .num_replicas = append(tables.num_replicas),
                     .first_of_expert = append(tables.first_of_expert),
                     .expert_part = append(tables.expert_part),
                     .expert_gpu = append(tables.expert_gpu),
                     .expert_slots = append(tables.expert_slots),
                     .slots_before = append(tables.slots_before),
                     .expert_of = append(expert_of),
                     .outer_expert = append(tables.outer_expert),
                     .inner_expert = append(tables.inner_expert),
                     .first_on_gpu = append(first_on_gpu),
                     .part_expert = append(tables.part_expert),
                     .part_gpu = append(tables.part_gpu),
                     .next_part = append(tables.next_part),
                     .slot_source = append(tables.slot_source),
                     .shared_slot = append(tables.shared_slot),
                     .shared_among = append(tables.shared_among),
                     .shared_place = append(tables.shared_place),
                     .first_slot = append(first_slot),
                     .replica_slot = append(replica_slot)});
  max_replicated_ = std::max(max_replicated_, static_cast<int32_t>(tables.expert.size()));
  max_parts_ = std::max(max_parts_, static_cast<int32_t>(tables.part_expert.size()));
}

SplitTables SplitGraph::Tables() const {
  return {.num_layers = num_layers(),
          .num_experts = num_experts_,
          .num_slots = num_slots_,
          .num_gpus = num_gpus(),
          .max_parts = max_parts_,
          .max_replicated = max_replicated_,
          .equal_speeds = equal_speeds_,
          .slack = slack_,
          .num_tables = std::ssize(tables_),
          .speeds = speeds_.data(),
          .layers = layers_.data(),
          .tables = tables_.data()};
}

}  // namespace eplb
