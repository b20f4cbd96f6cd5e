// Collectives among all ranks: the number of answers, and the error that names missing ranks.
#include "client/rows/control/control_channel.h"

#include <algorithm>
#include <utility>

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

absl::StatusOr<std::vector<std::string>> GatherAll(const char* what, std::string_view bytes,
                                                   int32_t world_size,
                                                   const AllGather& all_gather) {
  absl::StatusOr<std::vector<std::string>> answers = all_gather(bytes);
  if (!answers.ok() || std::cmp_equal(answers->size(), world_size)) return answers;
  return FailedPrecondition(what, ": the all-gather gave ", answers->size(),
                            " answers, world_size is ", world_size);
}

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
