#include "placement/backtest/switching.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "placement/decision/cost.h"
#include "placement/figure_mean.h"

namespace eplb {
namespace {

constexpr double kMostSteps = 1e15;
constexpr double kMostParts = 64;  // parts of a layer

int64_t After(int64_t step, double steps) {
  return step + static_cast<int64_t>(std::ceil(std::min(steps, kMostSteps)));
}

double WeightOf(const MovedRows& rows) {
  return static_cast<double>(std::max({int64_t{1}, rows.bytes, rows.transfers}));
}

// Figures of a layer that ran under several placements, each for `weights` [placements, L] of the
// window.
Evaluation Blend(std::span<const Evaluation> seen, const RealMatrix& weights) {
  Evaluation blend = seen.front();
  FigureMean mean;
  blend.min_balancedness.reset();
  blend.peak_load = 0;
  for (size_t layer = 0; layer < blend.max_gpu_load.size(); ++layer) {
    const auto row = static_cast<Eigen::Index>(layer);
    blend.gpu_loads.row(row).setZero();
    double most = 0;
    double even = 0;
    for (size_t k = 0; k < seen.size(); ++k) {
      const double weight = weights(static_cast<Eigen::Index>(k), row);
      blend.gpu_loads.row(row) += weight * seen[k].gpu_loads.row(row);
      most += weight * seen[k].max_gpu_load[layer];
      even += weight * seen[k].balancedness[layer].value_or(0);
    }
    blend.max_gpu_load[layer] = most;
    blend.peak_load = Finite(blend.peak_load + most);
    if (!blend.balancedness[layer]) continue;
    blend.balancedness[layer] = even;
    mean.Add(even);
    blend.min_balancedness = std::min(blend.min_balancedness.value_or(even), even);
  }
  blend.mean_balancedness = mean.Value();
  return blend;
}

}  // namespace

// The chunk that is being filled.
class Switching::Chunk {
 public:
  Chunk(const SwitchTime& time, int32_t num_gpus)
      : time_(&time), rows_(static_cast<size_t>(num_gpus)) {}

  // Adds a layer if it fits, or if the chunk is empty. turn: copies of a layer fill other GPUs than
  // the layer itself does.
  bool Add(const LayerChange& change, size_t turn) {
    const auto rows_at = [&](size_t gpu) { return change.rows[(gpu + turn) % rows_.size()]; };
    bool fits = num_layers_ < time_->layers_per_chunk &&
                pause_ + change.pause_seconds <= time_->max_pause_seconds;
    for (size_t gpu = 0; fits && gpu < rows_.size(); ++gpu) {
      fits = rows_[gpu] + rows_at(gpu) <= time_->rows_per_chunk;
    }
    if (num_layers_ > 0 && !fits) return false;
    ++num_layers_;
    pause_ += change.pause_seconds;
    for (size_t gpu = 0; gpu < rows_.size(); ++gpu) rows_[gpu] += rows_at(gpu);
    return true;
  }

 private:
  const SwitchTime* time_;
  std::vector<int64_t> rows_;
  int64_t num_layers_ = 0;
  double pause_ = 0;
};

Switching::Switching(const Placement& start, int32_t model_layers)
    : running_(start), target_(std::make_shared<const Placement>(start)) {
  const int64_t num_layers = start.topology().num_layers();
  for (int64_t i = 0; i < num_layers; ++i) {
    copies_.push_back(
        static_cast<int32_t>((i + 1) * model_layers / num_layers - i * model_layers / num_layers));
  }
}

absl::StatusOr<MovedRows> Switching::Interrupt(const SwitchTime& time, int64_t step) {
  MovedRows dropped;
  const auto in_flight =
      std::ranges::find_if(due_, [step](const Due& due) { return due.step >= step; });
  if (in_flight == due_.end()) return dropped;
  const int64_t last = std::max(in_flight->step, After(step, time.decide_steps));
  // The greater part of a layer decides whether all of it is switched.
  std::vector<double> part(copies_.size());
  for (const Due& due : due_) {
    if (due.target == target_ && due.step <= last) part[static_cast<size_t>(due.layer)] += due.part;
  }
  std::erase_if(due_, [&](Due& due) {
    const bool stays = due.target != target_ || part[static_cast<size_t>(due.layer)] >= 0.5;
    if (due.step > last && stays) due.step = last;
    if (due.step <= last && stays) return false;
    if (due.passed) return true;
    dropped.transfers += due.rows.transfers;
    dropped.bytes += due.rows.bytes;
    dropped.seconds += due.rows.seconds;
    dropped.chunks += due.rows.chunks;
    return true;
  });
  active_from_ = due_.back().step;
  std::vector<LayerPlacement> layers;
  for (int32_t layer = 0; layer < std::ssize(copies_); ++layer) {
    const auto newest = std::find_if(due_.rbegin(), due_.rend(),
                                     [layer](const Due& due) { return due.layer == layer; });
    if (newest != due_.rend()) layers.push_back(newest->target->Layer(LayerId{layer}));
  }
  EPLB_ASSIGN_OR_RETURN(Placement left, running_.WithLayers(layers));
  target_ = std::make_shared<const Placement>(std::move(left));
  return dropped;
}

absl::StatusOr<std::vector<Switching::LayerChange>> Switching::ChangesTo(
    const Change& change, const SwitchTime& time) const {
  std::vector<LayerChange> changes;
  const Topology& topology = running_.topology();
  for (LayerId layer{0}; layer.value < topology.num_layers(); ++layer.value) {
    const auto same = [&](const IndexMatrix& a, const IndexMatrix& b) {
      return (a.row(layer.value) == b.row(layer.value)).all();
    };
    if (same(target_->physical_to_logical_map(), change.target.physical_to_logical_map()) &&
        same(target_->replica_rank(), change.target.replica_rank())) {
      continue;
    }
    EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                          PlanTransfers(*target_, change.target, {&layer, 1}, change.expert));
    LayerChange& one = changes.emplace_back(LayerChange{.layer = layer.value});
    one.rows.resize(static_cast<size_t>(topology.num_gpus()));
    std::vector<double> bytes(one.rows.size());
    for (const Transfer& transfer : plan.transfers) {
      const auto gpu = static_cast<size_t>(transfer.destination.value);
      ++one.rows[gpu];
      bytes[gpu] += static_cast<double>(BytesOf(transfer, change.expert));
    }
    for (const Transfer& copy : plan.local) ++one.rows[static_cast<size_t>(copy.destination.value)];
    const double most_bytes = *std::ranges::max_element(bytes);
    one.pause_seconds = most_bytes * time.seconds_per_byte;
    one.moved = {.transfers = std::ssize(plan.transfers), .bytes = plan.link_bytes};
    one.value = change.falls[static_cast<size_t>(layer.value)] / std::max(most_bytes, 1.0);
  }
  std::ranges::stable_sort(changes, std::greater<>(), &LayerChange::value);
  double all = 0;
  for (const LayerChange& one : changes) {
    all += copies_[static_cast<size_t>(one.layer)] * WeightOf(one.moved);
  }
  for (LayerChange& one : changes) one.moved.seconds = change.seconds * WeightOf(one.moved) / all;
  return changes;
}

int64_t Switching::num_chunks_due() const {
  int64_t chunks = 0;
  for (const Due& due : due_) {
    if (due.target == target_ && !due.passed) chunks += due.rows.chunks;
  }
  return chunks;
}

int64_t Switching::begins_at() const {
  return std::ranges::find(due_, target_, &Due::target)->step;
}

// A proposal that arrives while another one is outstanding follows it at the next chunk.
int64_t Switching::FirstBoundary(const SwitchTime& time, int64_t step) const {
  const int64_t held = After(step, time.decide_steps);
  if (!due_.empty() && due_.back().step >= held) return due_.back().step + time.chunk_steps;
  if (held >= active_from_ + time.active_steps) {
    return (held + time.vote_every - 1) / time.vote_every * time.vote_every;
  }
  const auto wait = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(held - step)));
  return std::min(step + wait, held + time.vote_every - 1);
}

void Switching::Schedule(std::span<const LayerChange> changes, const SwitchTime& time,
                         int64_t step) {
  const int32_t num_gpus = running_.topology().num_gpus();
  Chunk chunk(time, num_gpus);
  num_chunks_ = 0;
  int64_t begun = 0;
  for (const LayerChange& change : changes) {
    const int32_t copies = copies_[static_cast<size_t>(change.layer)];
    for (int32_t copy = 0; copy < copies; ++copy) {
      if (!chunk.Add(change, static_cast<size_t>(copy))) {
        chunk = Chunk(time, num_gpus);
        chunk.Add(change, static_cast<size_t>(copy));
        step += time.chunk_steps;
        ++num_chunks_;
      }
      const double most = std::clamp<double>(
          static_cast<double>(*std::ranges::max_element(change.rows)), 1, kMostParts);
      const auto parts = static_cast<int64_t>(
          std::ceil(std::clamp(change.pause_seconds / time.max_pause_seconds, 1.0, most)));
      step += (parts - 1) * time.chunk_steps;
      num_chunks_ += parts - 1;
      due_.push_back({.step = step,
                      .layer = change.layer,
                      .part = 1.0 / copies,
                      .target = target_,
                      .rows = change.moved});
      due_.back().rows.chunks = num_chunks_ + 1 - begun;
      begun = num_chunks_ + 1;
    }
  }
  if (changes.empty()) return;
  ++num_chunks_;
  active_from_ = due_.back().step;
}

absl::Status Switching::Begin(const Change& change, const SwitchTime& time, int64_t step) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<LayerChange> changes, ChangesTo(change, time));
  target_ = std::make_shared<const Placement>(change.target);
  Schedule(changes, time, FirstBoundary(time, step));
  return absl::OkStatus();
}

absl::StatusOr<SwitchedWindow> Switching::Pass(int64_t first, int64_t num_steps,
                                               const Evaluate& evaluate) {
  const int64_t end = first + num_steps;
  SwitchedWindow window;
  for (Due& due : due_) {
    if (due.step < end && !due.passed) window.seconds = Finite(window.seconds + due.rows.seconds);
    due.passed = due.step < end;
  }
  EPLB_RETURN_IF_ERROR(Fold(first + 1));
  EPLB_ASSIGN_OR_RETURN(window.seen, evaluate(running_));
  if (due_.empty()) return window;
  std::vector<Evaluation> seen = {window.seen};
  std::vector<const Placement*> ran = {&running_};
  const auto num_layers = static_cast<Eigen::Index>(copies_.size());
  // Parts of each layer: over the window, and after the newest chunk.
  RealMatrix weights = RealMatrix::Ones(1, num_layers);
  RealMatrix now = weights;
  for (const Due& due : due_) {
    if (due.step >= end) break;
    auto at = std::ranges::find(ran, due.target.get());
    if (at == ran.end()) {
      EPLB_ASSIGN_OR_RETURN(Evaluation one, evaluate(*due.target));
      seen.push_back(std::move(one));
      at = ran.insert(ran.end(), due.target.get());
      weights.conservativeResizeLike(RealMatrix::Zero(std::ssize(ran), num_layers));
      now.conservativeResizeLike(RealMatrix::Zero(std::ssize(ran), num_layers));
    }
    const double rest =
        static_cast<double>(end - std::max(due.step, first)) / static_cast<double>(num_steps);
    const double others = 1 - now(at - ran.begin(), due.layer);
    const double taken = others > 0 ? std::min(1.0, due.part / others) : 0;
    auto parts = now.col(due.layer);
    const Eigen::ArrayXd before = parts;
    parts *= 1 - taken;
    parts(at - ran.begin()) = before(at - ran.begin()) + taken * others;
    weights.col(due.layer) += rest * (parts - before);
  }
  if (seen.size() > 1) window.seen = Blend(seen, weights);
  EPLB_RETURN_IF_ERROR(Fold(end));
  return window;
}

// Takes layers whose parts are all in force into the running placement.
absl::Status Switching::Fold(int64_t end) {
  std::vector<LayerPlacement> layers;
  for (int32_t layer = 0; layer < std::ssize(copies_); ++layer) {
    const auto of_layer = [layer](const Due& due) { return due.layer == layer; };
    const auto newest = std::find_if(due_.rbegin(), due_.rend(), of_layer);
    if (newest == due_.rend() || newest->step >= end) continue;
    layers.push_back(newest->target->Layer(LayerId{layer}));
    std::erase_if(due_, of_layer);
  }
  if (layers.empty()) return absl::OkStatus();
  if (due_.empty()) {
    running_ = *target_;
    return absl::OkStatus();
  }
  EPLB_ASSIGN_OR_RETURN(running_, running_.WithLayers(layers));
  return absl::OkStatus();
}

}  // namespace eplb
