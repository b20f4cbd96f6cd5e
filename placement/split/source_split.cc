#include "placement/split/source_split.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/split/split_body.h"

namespace eplb {
namespace {

// A path of up to 1,024 GPUs adds up steps of -1, 0 and 1 of each goal: digits of this base do not
// reach into each other. The last digit counts the steps.
constexpr int64_t kDigit = 4096;
constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 2;

// What one more token costs above `free` tokens, and one less saves.
int64_t CostUp(int64_t tokens, int64_t free) { return tokens >= free ? 1 : 0; }
int64_t CostDown(int64_t tokens, int64_t free) { return tokens > free ? -1 : 0; }
// For how many tokens that cost holds.
int64_t MostUp(int64_t tokens, int64_t free) {
  return tokens >= free ? std::numeric_limits<int64_t>::max() : free - tokens;
}
int64_t MostDown(int64_t tokens, int64_t free) { return tokens > free ? tokens - free : tokens; }

}  // namespace

SourceSplitter::SourceSplitter(const SplitGraph& graph)
    : graph_(graph),
      splitter_(graph),
      sums_(static_cast<size_t>(graph.num_experts())),
      place_of_(static_cast<size_t>(graph.max_parts())),
      room_(static_cast<size_t>(graph.num_gpus())),
      distance_(room_.size()),
      is_dead_(room_.size()),
      is_queued_(room_.size()) {}

absl::Status SourceSplitter::Split(LayerId layer, std::span<const int64_t> counts,
                                   std::span<int64_t> quotas) {
  EPLB_RETURN_IF_ERROR(Sum(layer, counts));
  if (std::ssize(quotas) != graph_.num_slots()) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer.value, ": ", quotas.size(),
                                                   " quotas, expected ", graph_.num_slots()));
  }
  EPLB_ASSIGN_OR_RETURN(const SplitPeak peak, splitter_.LeastPeak(layer, sums_));
  const SplitLayer tables = graph_.Layer(layer);
  places_.clear();
  first_place_.clear();
  end_place_.clear();
  nodes_.clear();
  for (int32_t i = 0; i < tables.num_replicated; ++i) PlaceExpert(tables, i, counts);
  MakeRoom(tables, peak);
  const auto is_over = [](int64_t room) { return room < 0; };
  while (std::any_of(room_.begin(), room_.end(), is_over)) {
    const int64_t length = FindDistances(tables);
    if (length == kFar) return absl::InternalError("a split within the least maximum is not found");
    std::fill(is_dead_.begin(), is_dead_.end(), 0);
    for (int32_t gpu = 0; gpu < graph_.num_gpus(); ++gpu) PushFrom(tables, gpu, length);
  }
  WriteQuotas(tables, quotas);
  return absl::OkStatus();
}

absl::Status SourceSplitter::Sum(LayerId layer, std::span<const int64_t> counts) {
  const size_t num_experts = sums_.size();
  if (counts.size() != room_.size() * num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer.value, ": ", counts.size(),
                                                   " counts, expected ", room_.size(), " x ",
                                                   num_experts));
  }
  std::fill(sums_.begin(), sums_.end(), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    int64_t& sum = sums_[i % num_experts];
    if (counts[i] < 0 || counts[i] > kMaxSplitTokens - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.value, ": source ", i / num_experts, " has ", counts[i],
                       " tokens of expert ", i % num_experts,
                       ", expected 0 or more and a sum of at most ", kMaxSplitTokens));
    }
    sum += counts[i];
  }
  return absl::OkStatus();
}

void SourceSplitter::Give(Place& place, int64_t tokens) {
  place.tokens += tokens;
  nodes_[static_cast<size_t>(place.node)].tokens += tokens;
}

// The split that is best for this expert alone: tokens stay on their GPU, then on their node; what
// must leave fills up equal shares first.
void SourceSplitter::PlaceExpert(const SplitLayer& layer, int32_t replicated,
                                 std::span<const int64_t> counts) {
  const size_t first = places_.size();
  const auto first_node = static_cast<int32_t>(nodes_.size());
  const auto expert = static_cast<size_t>(layer.expert[replicated]);
  const int32_t gpus_of_node = graph_.num_gpus() / graph_.num_nodes();
  const int64_t each = sums_[expert] / layer.num_replicas[replicated];
  const int64_t rest = sums_[expert] % layer.num_replicas[replicated];
  for (int32_t i = layer.first_of_expert[replicated]; i < layer.first_of_expert[replicated + 1];
       ++i) {
    const int32_t gpu = layer.expert_gpu[i];
    auto node = first_node;
    while (node < std::ssize(nodes_) &&
           nodes_[static_cast<size_t>(node)].node != gpu / gpus_of_node) {
      ++node;
    }
    if (node == std::ssize(nodes_)) nodes_.push_back({gpu / gpus_of_node, 0, 0});
    const int64_t slots = layer.expert_slots[i];
    const int64_t more = std::clamp<int64_t>(rest - layer.slots_before[i], 0, slots);
    const int64_t local = counts[static_cast<size_t>(gpu) * sums_.size() + expert];
    place_of_[static_cast<size_t>(layer.expert_part[i])] = places_.size();
    places_.push_back({gpu, node, 0, local, each * slots + more});
    Give(places_.back(), local);
  }
  const size_t end = places_.size();
  first_place_.resize(end, first);
  end_place_.resize(end, end);
  int64_t left = sums_[expert];
  for (auto node = first_node; node < std::ssize(nodes_); ++node) {
    NodeShare& share = nodes_[static_cast<size_t>(node)];
    for (int32_t i = 0; i < gpus_of_node; ++i) {
      const int32_t gpu = share.node * gpus_of_node + i;
      share.local += counts[static_cast<size_t>(gpu) * sums_.size() + expert];
    }
    int64_t tokens = share.local - share.tokens;  // of GPUs of the node without the expert
    FillUpToEqual(first, node, tokens);
    SpreadEvenly(first, node, tokens);
    left -= share.local;
  }
  FillUpToEqual(first, -1, left);
  SpreadEvenly(first, -1, left);
}

// node: -1 for all. Takes what it gives from `tokens`.
void SourceSplitter::FillUpToEqual(size_t first, int32_t node, int64_t& tokens) {
  for (size_t i = first; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (node >= 0 && place.node != node) continue;
    const int64_t given = std::clamp<int64_t>(place.equal - place.tokens, 0, tokens);
    Give(place, given);
    tokens -= given;
  }
}

void SourceSplitter::SpreadEvenly(size_t first, int32_t node, int64_t tokens) {
  const auto belongs = [node](const Place& place) { return node < 0 || place.node == node; };
  auto left =
      std::count_if(places_.begin() + static_cast<std::ptrdiff_t>(first), places_.end(), belongs);
  for (size_t i = first; i < places_.size() && tokens > 0; ++i) {
    if (!belongs(places_[i])) continue;
    const int64_t given = (tokens + left - 1) / left;
    --left;
    Give(places_[i], given);
    tokens -= given;
  }
}

void SourceSplitter::MakeRoom(const SplitLayer& layer, const SplitPeak& peak) {
  for (size_t gpu = 0; gpu < room_.size(); ++gpu) {
    const int64_t within = TokensWithin(peak, layer.speed[gpu]);
    room_[gpu] = within + within * graph_.slack() / kSplitSlackUnit;
  }
  for (int32_t i = 0; i < layer.num_fixed; ++i) {
    room_[static_cast<size_t>(layer.fixed_gpu[i])] -=
        sums_[static_cast<size_t>(layer.fixed_expert[i])];
  }
  for (const Place& place : places_) room_[static_cast<size_t>(place.gpu)] -= place.tokens;
}

int64_t SourceSplitter::Cost(const Step& step) const {
  const Place& from = places_[step.from];
  const Place& to = places_[step.to];
  int64_t of_nodes = 0;
  if (from.node != to.node) {
    const NodeShare& left = nodes_[static_cast<size_t>(from.node)];
    const NodeShare& entered = nodes_[static_cast<size_t>(to.node)];
    of_nodes = CostDown(left.tokens, left.local) + CostUp(entered.tokens, entered.local);
  }
  const int64_t of_gpus = CostDown(from.tokens, from.local) + CostUp(to.tokens, to.local);
  const int64_t of_shares = CostDown(from.tokens, from.equal) + CostUp(to.tokens, to.equal);
  return ((of_gpus * kDigit + of_nodes) * kDigit + of_shares) * kDigit + 1;
}

int64_t SourceSplitter::Capacity(const Step& step) const {
  const Place& from = places_[step.from];
  const Place& to = places_[step.to];
  int64_t most = std::min({MostDown(from.tokens, from.local), MostDown(from.tokens, from.equal),
                           MostUp(to.tokens, to.local), MostUp(to.tokens, to.equal)});
  if (from.node != to.node) {
    const NodeShare& left = nodes_[static_cast<size_t>(from.node)];
    const NodeShare& entered = nodes_[static_cast<size_t>(to.node)];
    most =
        std::min({most, MostDown(left.tokens, left.local), MostUp(entered.tokens, entered.local)});
  }
  return most;
}

// There is no cycle of negative cost, so the queue runs empty.
int64_t SourceSplitter::FindDistances(const SplitLayer& layer) {
  queue_.clear();
  for (size_t gpu = 0; gpu < room_.size(); ++gpu) {
    distance_[gpu] = room_[gpu] < 0 ? 0 : kFar;
    is_queued_[gpu] = room_[gpu] < 0 ? 1 : 0;
    if (room_[gpu] < 0) queue_.push_back(static_cast<int32_t>(gpu));
  }
  for (size_t head = 0; head < queue_.size(); ++head) {
    const int32_t gpu = queue_[head];
    is_queued_[static_cast<size_t>(gpu)] = 0;
    for (int32_t part = layer.first_on_gpu[gpu]; part < layer.first_on_gpu[gpu + 1]; ++part) {
      const size_t from = place_of_[static_cast<size_t>(part)];
      if (places_[from].tokens == 0) continue;
      for (size_t to = first_place_[from]; to < end_place_[from]; ++to) {
        if (to == from) continue;
        const auto next = static_cast<size_t>(places_[to].gpu);
        const int64_t distance = distance_[static_cast<size_t>(gpu)] + Cost({from, to});
        if (distance >= distance_[next]) continue;
        distance_[next] = distance;
        if (is_queued_[next] != 0) continue;
        is_queued_[next] = 1;
        queue_.push_back(static_cast<int32_t>(next));
      }
    }
  }
  int64_t nearest = kFar;
  for (size_t gpu = 0; gpu < room_.size(); ++gpu) {
    if (room_[gpu] > 0) nearest = std::min(nearest, distance_[gpu]);
  }
  return nearest;
}

// Depth first along steps of shortest paths, of which no two form a cycle.
void SourceSplitter::PushFrom(const SplitLayer& layer, int32_t source, int64_t length) {
  path_.clear();
  int32_t gpu = source;
  while (room_[static_cast<size_t>(source)] < 0 && distance_[static_cast<size_t>(source)] == 0) {
    if (room_[static_cast<size_t>(gpu)] > 0 && distance_[static_cast<size_t>(gpu)] == length) {
      MoveAlongPath(source, gpu);
      path_.clear();
      gpu = source;
      continue;
    }
    if (Advance(layer, gpu)) {
      gpu = places_[path_.back().to].gpu;
      continue;
    }
    is_dead_[static_cast<size_t>(gpu)] = 1;
    if (path_.empty()) return;
    gpu = places_[path_.back().from].gpu;
    path_.pop_back();
  }
}

bool SourceSplitter::Advance(const SplitLayer& layer, int32_t gpu) {
  for (int32_t part = layer.first_on_gpu[gpu]; part < layer.first_on_gpu[gpu + 1]; ++part) {
    const size_t from = place_of_[static_cast<size_t>(part)];
    if (places_[from].tokens == 0) continue;
    for (size_t to = first_place_[from]; to < end_place_[from]; ++to) {
      const auto next = static_cast<size_t>(places_[to].gpu);
      if (to == from || is_dead_[next] != 0) continue;
      if (distance_[next] != distance_[static_cast<size_t>(gpu)] + Cost({from, to})) continue;
      path_.push_back({from, to});
      return true;
    }
  }
  return false;
}

void SourceSplitter::MoveAlongPath(int32_t source, int32_t sink) {
  int64_t tokens = std::min(-room_[static_cast<size_t>(source)], room_[static_cast<size_t>(sink)]);
  for (const Step& step : path_) tokens = std::min(tokens, Capacity(step));
  for (const Step& step : path_) {
    Give(places_[step.from], -tokens);
    Give(places_[step.to], tokens);
  }
  room_[static_cast<size_t>(source)] += tokens;
  room_[static_cast<size_t>(sink)] -= tokens;
}

void SourceSplitter::WriteQuotas(const SplitLayer& layer, std::span<int64_t> quotas) {
  for (size_t slot = 0; slot < quotas.size(); ++slot) {
    const int32_t source = layer.slot_source[slot];
    const auto index = static_cast<size_t>(source >> 1);
    quotas[slot] = (source & 1) != 0 ? places_[place_of_[index]].tokens : sums_[index];
  }
  for (int32_t i = 0; i < layer.num_shared; ++i) {
    const int32_t among = layer.shared_among[i];
    int64_t& quota = quotas[static_cast<size_t>(layer.shared_slot[i])];
    quota = among == 0 ? 0 : quota / among + (layer.shared_place[i] < quota % among ? 1 : 0);
  }
}

}  // namespace eplb
