// The error that names missing ranks, and the ranks that it names.
#include "client/rows/control/control_channel.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "client/rows/control/meeting.h"

namespace eplb {

namespace {

constexpr char kMissingRanksPayload[] = "eplb.missing_ranks";

}  // namespace

std::vector<RankId> MissingRanks(const absl::Status& status) {
  std::vector<RankId> ranks;
  const absl::optional<absl::Cord> payload = status.GetPayload(kMissingRanksPayload);
  if (!payload.has_value()) return ranks;
  const std::string text(*payload);
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int32_t rank = 0;
    if (absl::SimpleAtoi(part, &rank)) ranks.push_back(RankId{rank});
  }
  return ranks;
}

absl::Status MissingRanksError(std::string_view what, std::span<const RankId> ranks,
                               std::string_view why) {
  std::vector<RankId> rising(ranks.begin(), ranks.end());
  std::ranges::sort(rising);
  rising.erase(std::unique(rising.begin(), rising.end()), rising.end());
  absl::Status status =
      Aborted(absl::string_view(what.data(), what.size()), ": ", NameRanks(rising),
              rising.size() == 1 ? " is missing: " : " are missing: ",
              absl::string_view(why.data(), why.size()));
  status.SetPayload(kMissingRanksPayload,
                    absl::Cord(absl::StrJoin(rising, ",", [](std::string* out, RankId rank) {
                      absl::StrAppend(out, rank.value);
                    })));
  return status;
}

}  // namespace eplb
