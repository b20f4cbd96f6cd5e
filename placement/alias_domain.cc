#include "placement/alias_domain.h"

#include <algorithm>
#include <array>

namespace eplb {
namespace {

constexpr int kDigitBits = 8;
constexpr uint64_t kDigitMask = (1 << kDigitBits) - 1;

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// k: the whole experts that every GPU has room for beside a part of another.
int32_t NumWhole(const AliasDomain& domain) {
  return *std::min_element(domain.slots_of_gpu.begin(), domain.slots_of_gpu.end()) - 1;
}

// Slot by slot the experts in turn: neighbours on a GPU differ, and counts differ by at most one.
void Spread(std::span<const int32_t> experts, std::span<int32_t> slots) {
  for (size_t slot = 0, next = 0; slot < slots.size(); ++slot) {
    slots[slot] = experts[next];
    next = next + 1 == experts.size() ? 0 : next + 1;
  }
}

}  // namespace

bool AliasFits(int64_t num_experts, std::span<const int32_t> slots_of_gpu) {
  if (slots_of_gpu.empty()) return false;
  const auto [fewest, most] = std::minmax_element(slots_of_gpu.begin(), slots_of_gpu.end());
  const auto num_gpus = static_cast<int64_t>(slots_of_gpu.size());
  return num_experts <= (*fewest - 1) * num_gpus && *most <= num_experts;
}

// Least significant digit first: stable, and cheaper than comparisons, which a processor cannot
// predict. Digits in which all loads agree are skipped: counts below 2^16 cost two passes.
void AliasSolver::SortByLoad(const AliasDomain& domain) {
  keys_.resize(domain.experts.size());
  sorted_.resize(domain.experts.size());
  replicas_.resize(domain.loads.size());
  held_on_.resize(domain.loads.size());
  uint64_t any = 0;
  uint64_t all = ~uint64_t{0};
  for (size_t i = 0; i < keys_.size(); ++i) {
    const int32_t expert = domain.experts[i];
    const auto tokens = static_cast<uint64_t>(domain.loads[Index(expert)]);
    keys_[i] = {.tokens = tokens, .expert = expert};
    replicas_[Index(expert)] = 1;
    held_on_[Index(expert)] = -1;
    any |= tokens;
    all &= tokens;
  }
  const uint64_t varying = any & ~all;
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if ((varying >> shift & kDigitMask) == 0) continue;
    std::array<uint32_t, kDigitMask + 1> place{};
    for (const Key& key : keys_) ++place[key.tokens >> shift & kDigitMask];
    uint32_t sum = 0;
    for (uint32_t& count : place) sum += std::exchange(count, sum);
    for (const Key& key : keys_) sorted_[place[key.tokens >> shift & kDigitMask]++] = key;
    keys_.swap(sorted_);
  }
}

void AliasSolver::MakeList(const AliasDomain& domain) {
  num_nodes_ = NumWhole(domain) * static_cast<int32_t>(domain.slots_of_gpu.size());
  const size_t num_zeros = Index(num_nodes_) - keys_.size();
  nodes_.resize(Index(num_nodes_) + 2);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    nodes_[i] = {.tokens = 0, .expert = -1, .before = at - 1, .after = at + 1};
    if (i <= num_zeros || i > Index(num_nodes_)) continue;
    const Key& key = keys_[i - 1 - num_zeros];
    nodes_[i].tokens = static_cast<int64_t>(key.tokens);
    nodes_[i].expert = key.expert;
  }
  around_ = (num_nodes_ + 1) / 2;
}

AliasSolver::Window AliasSolver::FindWindow(int32_t near, int32_t length, int64_t target) const {
  const int32_t end = num_nodes_ + 1;
  Window window{.first = near, .last = near, .tokens = nodes_[Index(near)].tokens};
  for (int32_t i = 1; i < length; ++i) {
    // Below `near` as far as it goes, the rest above.
    const int32_t before = nodes_[Index(window.first)].before;
    int32_t& edge = before != 0 ? window.first : window.last;
    edge = before != 0 ? before : nodes_[Index(window.last)].after;
    window.tokens += nodes_[Index(edge)].tokens;
  }
  while (window.tokens > target && nodes_[Index(window.first)].before != 0) {
    window.tokens -= nodes_[Index(window.last)].tokens;
    window.last = nodes_[Index(window.last)].before;
    window.first = nodes_[Index(window.first)].before;
    window.tokens += nodes_[Index(window.first)].tokens;
  }
  for (int32_t next = nodes_[Index(window.last)].after; next != end;
       next = nodes_[Index(next)].after) {
    const int64_t tokens = window.tokens - nodes_[Index(window.first)].tokens;
    if (nodes_[Index(next)].tokens > target - tokens) break;
    window.tokens = tokens + nodes_[Index(next)].tokens;
    window.first = nodes_[Index(window.first)].after;
    window.last = next;
  }
  return window;
}

size_t AliasSolver::FillGpu(const Window& window, int64_t target, std::span<int32_t> slots,
                            std::span<int64_t> quotas) {
  size_t used = 0;
  const int32_t before = nodes_[Index(window.first)].before;
  const int32_t after = nodes_[Index(window.last)].after;
  for (int32_t i = window.first; i != after; i = nodes_[Index(i)].after) {
    const Node& node = nodes_[Index(i)];
    if (node.expert < 0) continue;
    slots[used] = node.expert;
    quotas[used] = node.tokens;
    ++used;
  }
  nodes_[Index(before)].after = after;
  nodes_[Index(after)].before = before;
  around_ = after <= num_nodes_ ? after : before;
  const int64_t missing = target - window.tokens;
  if (after <= num_nodes_ && missing > 0) {
    Node& continued = nodes_[Index(after)];
    continued.tokens -= missing;
    ++replicas_[Index(continued.expert)];
    slots[used] = continued.expert;
    quotas[used] = missing;
    ++used;
  }
  return used;
}

bool AliasSolver::Lighter::operator()(const Replicated& a, const Replicated& b) const {
  if (a.tokens_per_replica != b.tokens_per_replica) {
    return a.tokens_per_replica < b.tokens_per_replica;
  }
  if (a.replicas != b.replicas) return a.replicas > b.replicas;
  return a.expert > b.expert;
}

// The experts with several replicas, and as many of the others as may be asked for, heaviest first:
// one for each left-over slot and those that the GPU in question has already.
void AliasSolver::FindCandidates(size_t num_leftovers, size_t most_slots) {
  size_t single = num_leftovers + most_slots;
  heap_.clear();
  for (auto key = keys_.rbegin(); key != keys_.rend(); ++key) {
    const int32_t replicas = replicas_[Index(key->expert)];
    if (replicas == 1 && single == 0) continue;
    if (replicas == 1) --single;
    const auto tokens = static_cast<double>(key->tokens);
    heap_.push_back({tokens / replicas, tokens, replicas, key->expert});
  }
  std::make_heap(heap_.begin(), heap_.end(), Lighter());
}

void AliasSolver::FillLeftovers(const AliasDomain& domain, std::span<int32_t> slots) {
  size_t num_leftovers = slots.size();
  for (const size_t used : used_) num_leftovers -= used;
  FindCandidates(num_leftovers,
                 Index(*std::max_element(domain.slots_of_gpu.begin(), domain.slots_of_gpu.end())));
  for (size_t gpu = 0, first = 0; gpu < used_.size(); ++gpu) {
    const std::span<int32_t> held = slots.subspan(first, Index(domain.slots_of_gpu[gpu]));
    first += held.size();
    if (used_[gpu] == held.size()) continue;
    const auto this_gpu = static_cast<int32_t>(gpu);
    for (const int32_t expert : held.first(used_[gpu])) held_on_[Index(expert)] = this_gpu;
    set_aside_.clear();
    for (size_t used = used_[gpu]; used < held.size();) {
      std::pop_heap(heap_.begin(), heap_.end(), Lighter());
      Replicated heaviest = heap_.back();
      heap_.pop_back();
      if (held_on_[Index(heaviest.expert)] != this_gpu) {
        held[used++] = heaviest.expert;
        ++heaviest.replicas;
        heaviest.tokens_per_replica = heaviest.tokens / heaviest.replicas;
      }
      set_aside_.push_back(heaviest);
    }
    for (const Replicated& replicated : set_aside_) {
      heap_.push_back(replicated);
      std::push_heap(heap_.begin(), heap_.end(), Lighter());
    }
  }
}

void AliasSolver::Solve(const AliasDomain& domain, std::span<int32_t> slots,
                        std::span<int64_t> quotas) {
  int64_t left = 0;
  for (const int32_t expert : domain.experts) left += domain.loads[Index(expert)];
  std::fill(quotas.begin(), quotas.end(), 0);
  if (left == 0) return Spread(domain.experts, slots);

  SortByLoad(domain);
  MakeList(domain);
  const size_t num_gpus = domain.slots_of_gpu.size();
  const int32_t num_whole = NumWhole(domain);
  used_.resize(num_gpus);
  for (size_t gpu = 0, first = 0; gpu < num_gpus; ++gpu) {
    const auto gpus_left = static_cast<int64_t>(num_gpus - gpu);
    const int64_t target = left / gpus_left + (left % gpus_left != 0 ? 1 : 0);
    const Window window = FindWindow(around_, num_whole, target);
    const size_t held = Index(domain.slots_of_gpu[gpu]);
    used_[gpu] = FillGpu(window, target, slots.subspan(first, held), quotas.subspan(first, held));
    for (const int64_t quota : quotas.subspan(first, used_[gpu])) left -= quota;
    first += held;
  }
  FillLeftovers(domain, slots);
}

}  // namespace eplb
