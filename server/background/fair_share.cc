#include "server/background/fair_share.h"

#include <cmath>

namespace eplb {
namespace {

constexpr double kForgotten = 1e-6;  // seconds

}  // namespace

double FairShare::SecondsOf(const Share& share, absl::Time now) {
  return share.seconds * std::exp2(-absl::FDivDuration(now - share.at, kHalfLife));
}

void FairShare::Spend(const std::string& job, absl::Duration used, absl::Time now) {
  std::erase_if(shares_,
                [now](const auto& entry) { return SecondsOf(entry.second, now) < kForgotten; });
  shares_[job] = {.seconds = Used(job, now) + absl::ToDoubleSeconds(used), .at = now};
}

double FairShare::Used(const std::string& job, absl::Time now) const {
  const auto found = shares_.find(job);
  return found == shares_.end() ? 0 : SecondsOf(found->second, now);
}

}  // namespace eplb
