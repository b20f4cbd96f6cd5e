#include "client/cli/bound_gap.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace eplb::cli {
namespace {

constexpr double kRounding = 1e-9;
// Loads below it have few digits.
constexpr double kLeastNormal = std::numeric_limits<double>::min() / kRounding;

}  // namespace

absl::StatusOr<BoundGaps> GapsToBounds(const std::vector<double>& peaks,
                                       const std::vector<double>& bounds) {
  BoundGaps result;
  double sum = 0;
  int64_t layers_with_load = 0;
  for (size_t layer = 0; layer < peaks.size(); ++layer) {
    const double peak = peaks[layer];
    if (bounds[layer] > peak * (1 + kRounding) && bounds[layer] > kLeastNormal) {
      return absl::InternalError(absl::StrCat("layer ", layer, ": the proved bound ", bounds[layer],
                                              " is above the GPU load ", peak,
                                              " that was found; please report this"));
    }
    const double bound = std::min(bounds[layer], peak);
    result.bounds.push_back(bound);
    result.gaps.push_back(bound > 0 ? peak / bound - 1 : 0);
    result.max = std::max(result.max, result.gaps.back());
    if (peak > 0) {
      sum += result.gaps.back();
      ++layers_with_load;
    }
  }
  if (layers_with_load > 0) result.mean = sum / static_cast<double>(layers_with_load);
  return result;
}

}  // namespace eplb::cli
