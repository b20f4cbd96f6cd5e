#include "placement/scenario_medoids.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/scenarios.h"

namespace eplb {
namespace {

using Shares = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Sums of distances that differ by less are equal, so that rounding exchanges nothing.
constexpr double kEqualSums = 1e-5;

// Each layer scaled to a sum of 1.
Shares FloatsOf(const Load& load) { return NormalisedLayers(load).cast<float>(); }

double DistanceOf(const Shares& a, const Shares& b) {
  double sum = 0;
  for (Eigen::Index layer = 0; layer < a.rows(); ++layer) {
    sum += static_cast<double>((a.row(layer) - b.row(layer)).abs().sum());
  }
  return sum / (2 * static_cast<double>(a.rows()));
}

// Medoids of candidates, which stand for all of these.
class Medoids {
 public:
  // distances: [n, n], of the candidates.
  explicit Medoids(Eigen::ArrayXXd distances) : distances_(std::move(distances)) {}

  // Returns at most `k` candidates, in rising order.
  std::vector<size_t> Choose(size_t k) {
    while (chosen_.size() < k && Lower(chosen_.size())) {
    }
    for (int i = 0; i < kMaxExchanges && Lower(0); ++i) {
    }
    std::ranges::sort(chosen_);
    return chosen_;
  }

 private:
  auto DistancesTo(size_t candidate) const {
    return distances_.col(static_cast<Eigen::Index>(candidate));
  }
  // Distances to the nearest medoid but the one at `place`.
  Eigen::ArrayXd NearestBut(size_t place) const {
    Eigen::ArrayXd nearest =
        Eigen::ArrayXd::Constant(distances_.rows(), std::numeric_limits<double>::max());
    for (size_t i = 0; i < chosen_.size(); ++i) {
      if (i != place) nearest = nearest.min(DistancesTo(chosen_[i]));
    }
    return nearest;
  }
  // Puts a candidate where the sum of distances falls most: in place of a medoid from `first` on,
  // or beside them if `first` is their number. Returns false if no candidate lowers the sum.
  bool Lower(size_t first);

  Eigen::ArrayXXd distances_;
  std::vector<size_t> chosen_;
  double sum_ = std::numeric_limits<double>::max();  // sum of distances to the nearest medoid
};

bool Medoids::Lower(size_t first) {
  double least = sum_;
  std::pair<size_t, size_t> best;  // place, candidate
  for (size_t place = first; place < std::max(first + 1, chosen_.size()); ++place) {
    const Eigen::ArrayXd nearest = NearestBut(place);
    for (size_t candidate = 0; candidate < static_cast<size_t>(distances_.cols()); ++candidate) {
      const double sum = nearest.min(DistancesTo(candidate)).sum();
      if (sum >= least - kEqualSums) continue;
      least = sum;
      best = {place, candidate};
    }
  }
  if (least == sum_) return false;
  sum_ = least;
  if (best.first == chosen_.size()) chosen_.emplace_back();
  chosen_[best.first] = best.second;
  return true;
}

// Windows with tokens.
absl::StatusOr<std::vector<size_t>> UsableWindows(std::span<const Load* const> windows, int k) {
  if (k < 1 || k > static_cast<int>(kMaxScenarios)) {
    return InvalidInput(k, " scenarios, expected 1..", kMaxScenarios);
  }
  EPLB_RETURN_IF_ERROR(CheckSameShape(windows));
  std::vector<size_t> usable;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i]->has_tokens()) usable.push_back(i);
  }
  if (usable.empty()) return InvalidInput("no window has tokens");
  return usable;
}

}  // namespace

absl::StatusOr<ScenarioChoice> ChooseScenarios(std::span<const Load* const> windows, int k) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<size_t> usable, UsableWindows(windows, k));
  const size_t n = std::min(usable.size(), kMaxCandidates);
  std::vector<size_t> candidates;  // windows
  std::vector<Shares> shares;
  for (size_t i = 0; i < n; ++i) {
    candidates.push_back(usable[i * usable.size() / n]);
    shares.push_back(FloatsOf(*windows[candidates.back()]));
  }
  Eigen::ArrayXXd distances =
      Eigen::ArrayXXd::Zero(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(n));
  for (Eigen::Index a = 0; a < distances.rows(); ++a) {
    for (Eigen::Index b = 0; b < a; ++b) {
      distances(a, b) = DistanceOf(shares[static_cast<size_t>(a)], shares[static_cast<size_t>(b)]);
      distances(b, a) = distances(a, b);
    }
  }
  const std::vector<size_t> medoids = Medoids(std::move(distances)).Choose(static_cast<size_t>(k));
  ScenarioChoice choice;
  for (const size_t medoid : medoids) choice.windows.push_back(candidates[medoid]);
  choice.weights.resize(medoids.size());
  choice.farthest = usable.front();
  double sum = 0;
  for (const size_t window : usable) {
    const Shares own = FloatsOf(*windows[window]);
    size_t nearest = 0;
    double least = std::numeric_limits<double>::max();
    for (size_t i = 0; i < medoids.size(); ++i) {
      const double distance = DistanceOf(own, shares[medoids[i]]);
      if (distance >= least) continue;
      least = distance;
      nearest = i;
    }
    ++choice.weights[nearest];
    sum += least;
    if (least <= choice.max_distance) continue;
    choice.max_distance = least;
    choice.farthest = window;
  }
  choice.mean_distance = sum / static_cast<double>(usable.size());
  return choice;
}

}  // namespace eplb
