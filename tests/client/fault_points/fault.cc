#include "tests/client/fault_points/fault.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace eplb {

std::string NameOf(Point point) {
  static constexpr std::array<const char*, 9> kNames = {"before vote", "before post",  "after post",
                                                        "during rows", "after stage",  "after vote",
                                                        "mid commit",  "after commit", "no point"};
  return kNames.at(static_cast<size_t>(point));
}

std::string NameOf(Strike strike) {
  static constexpr std::array<const char*, 5> kNames = {"nothing", "kill", "stop", "delay",
                                                        "corrupt"};
  return kNames.at(static_cast<size_t>(strike));
}

bool Fault::IsMissedVote(bool first, bool ready, uint64_t num_posts) const {
  if (point == Point::kBeforeVote) return first && ready && num_posts + 1 == post_id;
  return num_posts == post_id && first == (point >= Point::kAfterVote);
}

std::string Fault::Name() const {
  if (!nccl.empty()) return nccl;
  return absl::StrCat(NameOf(strike), " rank ", victim, " ", NameOf(point),
                      point == Point::kDuringRows ? absl::StrCat(" ", nth) : "",
                      lasts > absl::ZeroDuration() ? absl::FormatDuration(lasts) : "");
}

}  // namespace eplb
