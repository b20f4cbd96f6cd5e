#include "placement/load.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {

namespace {

std::string Cell(Eigen::Index layer, Eigen::Index expert) {
  return absl::StrCat("layer ", layer, " expert ", expert);
}

absl::Status CheckNotEmpty(Eigen::Index rows, Eigen::Index cols) {
  constexpr int64_t kMaxLoadCells = int64_t{1} << 28;
  if (rows < 1 || cols < 1) {
    return InvalidInput("load is ", rows, " layers x ", cols, " experts; both must be at least 1");
  }
  if (rows > kMaxLoadCells / cols) {
    return InvalidInput("load has ", rows, " x ", cols, " cells; at most ", kMaxLoadCells,
                        " are accepted");
  }
  return absl::OkStatus();
}

absl::StatusOr<Load> SumOfCounts(std::span<const Load* const> windows) {
  LoadMatrix sum = windows.front()->counts();
  for (const Load* window : windows.subspan(1)) {
    const LoadMatrix& counts = window->counts();
    for (Eigen::Index i = 0; i < sum.size(); ++i) {
      if (__builtin_add_overflow(sum.data()[i], counts.data()[i], &sum.data()[i])) {
        return InvalidInput("the sum over windows of layer ", i / sum.cols(), " expert ",
                            i % sum.cols(), " is above 2^63-1; take the last or an average (ema)");
      }
    }
  }
  return Load::FromCounts(std::move(sum));
}

}  // namespace

absl::StatusOr<Load> Load::FromCounts(LoadMatrix counts) {
  if (absl::Status status = CheckNotEmpty(counts.rows(), counts.cols()); !status.ok())
    return status;
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
    int64_t sum = 0;
    for (Eigen::Index expert = 0; expert < counts.cols(); ++expert) {
      const int64_t cell = counts(layer, expert);
      if (cell < 0) {
        return InvalidInput("load: ", Cell(layer, expert), " is ", cell, ", counts must be >= 0");
      }
      if (__builtin_add_overflow(sum, cell, &sum)) {
        return InvalidInput("load: the sum of layer ", layer, " is above 2^63-1");
      }
    }
  }
  return Load(std::move(counts));
}

absl::StatusOr<Load> Load::FromEstimates(RealMatrix estimates) {
  if (absl::Status status = CheckNotEmpty(estimates.rows(), estimates.cols()); !status.ok()) {
    return status;
  }
  for (Eigen::Index layer = 0; layer < estimates.rows(); ++layer) {
    double sum = 0;
    for (Eigen::Index expert = 0; expert < estimates.cols(); ++expert) {
      const double cell = estimates(layer, expert);
      if (!std::isfinite(cell) || cell < 0) {
        return InvalidInput("load: ", Cell(layer, expert), " is ", cell,
                            ", counts must be finite and >= 0");
      }
      sum += cell;
    }
    if (!std::isfinite(sum)) {
      return InvalidInput("load: the sum of layer ", layer, " is above the range of double");
    }
  }
  return Load(std::move(estimates));
}

int32_t Load::num_layers() const {
  return std::visit([](const auto& m) { return static_cast<int32_t>(m.rows()); }, cells_);
}

int32_t Load::num_experts() const {
  return std::visit([](const auto& m) { return static_cast<int32_t>(m.cols()); }, cells_);
}

RealMatrix Load::ToDouble() const {
  return std::visit([](const auto& m) -> RealMatrix { return m.template cast<double>(); }, cells_);
}

bool Load::has_tokens() const {
  return std::visit([](const auto& m) { return (m > 0).any(); }, cells_);
}

RealMatrix NormalisedLayers(const Load& load) {
  RealMatrix shares = load.ToDouble();
  for (Eigen::Index layer = 0; layer < shares.rows(); ++layer) {
    auto row = shares.row(layer);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    if (sum > 0) row /= sum;
  }
  return shares;
}

absl::StatusOr<FloatMatrix> Load::ToFloat() const {
  if (is_counts()) return FloatMatrix(counts().cast<float>());
  const RealMatrix& cells = std::get<RealMatrix>(cells_);
  FloatMatrix result(cells.rows(), cells.cols());
  for (Eigen::Index layer = 0; layer < cells.rows(); ++layer) {
    for (Eigen::Index expert = 0; expert < cells.cols(); ++expert) {
      const double cell = cells(layer, expert);
      if (cell > static_cast<double>(std::numeric_limits<float>::max())) {
        return InvalidInput("load: ", Cell(layer, expert), " is ", cell, ", above float32's range");
      }
      result(layer, expert) = static_cast<float>(cell);
    }
  }
  return result;
}

bool operator==(const Load& a, const Load& b) {
  if (a.num_layers() != b.num_layers() || a.num_experts() != b.num_experts()) return false;
  if (a.is_counts() != b.is_counts()) return false;
  if (a.is_counts()) return (a.counts() == b.counts()).all();
  return (std::get<RealMatrix>(a.cells_) == std::get<RealMatrix>(b.cells_)).all();
}

absl::Status CheckSameShape(std::span<const Load* const> windows) {
  if (windows.empty()) return InvalidInput("there is no window");
  const Load& first = *windows.front();
  for (size_t i = 1; i < windows.size(); ++i) {
    const Load& load = *windows[i];
    if (load.num_layers() == first.num_layers() && load.num_experts() == first.num_experts()) {
      continue;
    }
    return InvalidInput("window ", i, " has ", load.num_layers(), " layers x ", load.num_experts(),
                        " experts, window 0 has ", first.num_layers(), " x ", first.num_experts());
  }
  return absl::OkStatus();
}

absl::StatusOr<Load> CombineLoads(std::span<const Load* const> windows,
                                  std::optional<double> decay) {
  EPLB_RETURN_IF_ERROR(CheckSameShape(windows));
  if (windows.size() == 1) return *windows.front();
  const bool all_counts =
      std::ranges::all_of(windows, [](const Load* window) { return window->is_counts(); });
  if (!decay.has_value() && all_counts) return SumOfCounts(windows);
  RealMatrix estimate = windows.front()->ToDouble();
  for (const Load* window : windows.subspan(1)) {
    if (decay.has_value()) {
      estimate = *decay * estimate + (1 - *decay) * window->ToDouble();
    } else {
      estimate += window->ToDouble();
    }
  }
  return Load::FromEstimates(std::move(estimate));
}

double CombineSteps(std::span<const double> num_steps, std::optional<double> decay) {
  double combined = num_steps.front();
  for (const double steps : num_steps.subspan(1)) {
    combined = decay.has_value() ? *decay * combined + (1 - *decay) * steps : combined + steps;
  }
  return combined;
}

absl::Status CheckLoadFits(const Load& load, const Topology& topology, const char* owner) {
  if (load.num_layers() == topology.num_layers() && load.num_experts() == topology.num_experts()) {
    return absl::OkStatus();
  }
  return InvalidInput("load has ", load.num_layers(), " layers x ", load.num_experts(),
                      " experts, the ", owner, " has ", topology.num_layers(), " x ",
                      topology.num_experts());
}

}  // namespace eplb
