#include "client/session/load_windows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.h"

namespace eplb {
namespace {

int64_t NumSteps(const wire::LoadReport& window) {
  return window.last_step - window.first_step + 1;
}

// In a report, which packs what it can.
int64_t CellBytes(const LoadMatrix& counts) {
  const bool fits = counts.maxCoeff() <= int64_t{std::numeric_limits<uint32_t>::max()};
  return fits ? sizeof(uint32_t) : sizeof(uint64_t);
}

}  // namespace

LoadWindows::LoadWindows(int32_t num_layers, int32_t num_experts, int32_t report_every,
                         int64_t first_step, int64_t version)
    : report_every_(report_every),
      first_step_(first_step),
      counts_(LoadMatrix::Zero(num_layers, num_experts)),
      version_(version),
      layer_tokens_(static_cast<size_t>(num_layers), 0) {}

absl::Status LoadWindows::Record(int32_t layer, std::span<const int64_t> counts) {
  if (layer < 0 || layer >= counts_.rows()) {
    return InvalidInput("counts of layer ", layer, ", expected 0..", counts_.rows() - 1);
  }
  if (static_cast<Eigen::Index>(counts.size()) != counts_.cols()) {
    return InvalidInput("layer ", layer, ": ", counts.size(), " counts, the model has ",
                        counts_.cols(), " experts");
  }
  int64_t tokens = layer_tokens_[static_cast<size_t>(layer)];
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    const int64_t count = counts[expert];
    if (count < 0) {
      return InvalidInput("layer ", layer, " expert ", expert, ": count ", count,
                          ", expected >= 0");
    }
    if (count > std::numeric_limits<int64_t>::max() - tokens) {
      return InvalidInput("layer ", layer, " expert ", expert,
                          ": the window's tokens exceed 2^63-1");
    }
    tokens += count;
  }
  layer_tokens_[static_cast<size_t>(layer)] = tokens;
  const Eigen::Map<const Eigen::Array<int64_t, 1, Eigen::Dynamic>> row(counts.data(),
                                                                       counts_.cols());
  counts_.row(layer) += row;
  return absl::OkStatus();
}

absl::Status LoadWindows::RecordStepTime(double seconds) {
  if (!(seconds >= 0 && seconds <= wire::kMaxStepSeconds)) {
    return InvalidInput("step time is ", seconds, " s, expected 0..", wire::kMaxStepSeconds);
  }
  step_seconds_ += seconds;
  return absl::OkStatus();
}

absl::Status LoadWindows::RecordSplits(int32_t layer, const SplitSums& sums) {
  const auto index = static_cast<size_t>(layer);
  const int64_t earlier = split_tokens_.empty() ? 0 : split_tokens_[index];
  if (sums.tokens > std::numeric_limits<int64_t>::max() - earlier) {
    return InvalidInput("layer ", layer, ": the window's split tokens exceed 2^63-1");
  }
  for (std::vector<int64_t>* of_layers :
       {&split_tokens_, &split_peaks_, &split_peaks_static_, &split_peaks_without_eplb_}) {
    of_layers->resize(layer_tokens_.size(), 0);
  }
  split_tokens_[index] += sums.tokens;
  split_peaks_[index] += sums.peak;
  split_peaks_static_[index] += sums.peak_static;
  split_peaks_without_eplb_[index] += sums.peak_without_eplb;
  return absl::OkStatus();
}

std::optional<wire::LoadReport> LoadWindows::EndStep(int64_t step) {
  if (!EndsAt(step)) return std::nullopt;
  wire::LoadReport window{.first_step = first_step_,
                          .last_step = step,
                          .counts = counts_,
                          .version = version_,
                          .earlier = std::exchange(earlier_, {}),
                          .parts_unknown = std::exchange(parts_unknown_, false),
                          .split_tokens = std::exchange(split_tokens_, {}),
                          .split_peaks = std::exchange(split_peaks_, {}),
                          .split_peaks_static = std::exchange(split_peaks_static_, {}),
                          .split_peaks_without_eplb = std::exchange(split_peaks_without_eplb_, {})};
  const auto num_steps = static_cast<double>(step - first_step_ + 1);
  window.step_seconds =
      std::min(std::exchange(step_seconds_, 0) / num_steps, wire::kMaxStepSeconds);
  earlier_counts_.resize(0, 0);
  earlier_bytes_ = 0;
  first_step_ = step + 1;
  counts_.setZero();
  layer_tokens_.assign(layer_tokens_.size(), 0);
  if (next_.report_every != 0 && first_step_ >= next_.from_step &&
      first_step_ % next_.report_every == 0) {
    report_every_ = next_.report_every;
    next_ = {};
  }
  return window;
}

void LoadWindows::Switched(int64_t step, int64_t version) {
  const int64_t ran = std::exchange(version_, version);
  if (step < first_step_ || parts_unknown_) return;  // the window before ended with this step
  wire::LoadPart part{.last_step = step, .version = ran, .counts = counts_};
  if (!earlier_.empty()) part.counts -= earlier_counts_;
  earlier_bytes_ += part.counts.size() * CellBytes(part.counts);
  const int64_t window_bytes = counts_.size() * int64_t{sizeof(int64_t)};
  if (static_cast<int32_t>(earlier_.size()) == wire::kMaxLoadParts ||
      earlier_bytes_ + window_bytes > wire::kMaxReportBytes) {
    parts_unknown_ = true;
    earlier_.clear();
    earlier_counts_.resize(0, 0);
    return;
  }
  earlier_.push_back(std::move(part));
  earlier_counts_ = counts_;
}

void LoadWindows::SetReportInterval(const wire::SetReportInterval& pace) {
  if (pace.report_every < 1) return;
  next_ = pace.report_every == report_every_ ? wire::SetReportInterval{} : pace;
}

void WindowBuffer::Add(wire::LoadReport window) {
  steps_ += NumSteps(window);
  windows_.push_back(std::move(window));
  while (steps_ > max_steps_ && windows_.size() > 1) {
    const int64_t dropped = NumSteps(windows_.front());
    steps_ -= dropped;
    dropped_steps_ += dropped;
    unreported_ += dropped;
    windows_.pop_front();
  }
}

std::optional<wire::LoadReport> WindowBuffer::Take() {
  if (windows_.empty()) return std::nullopt;
  wire::LoadReport window = std::move(windows_.front());
  windows_.pop_front();
  steps_ -= NumSteps(window);
  window.dropped_steps = std::exchange(unreported_, 0);
  return window;
}

}  // namespace eplb
