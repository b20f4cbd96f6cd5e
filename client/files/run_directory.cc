#include "client/files/run_directory.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/history_file.h"
#include "client/files/load_file.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::StatusOr<std::vector<RankHistory>> ReadHistories(const std::string& directory,
                                                       int32_t world_size) {
  std::vector<RankHistory> histories;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const std::string path = absl::StrCat(directory, "/rank-", rank, ".jsonl");
    EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistoryFile(path));
    if (history.rank.value != rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is the log of rank ", history.rank.value));
    }
    histories.push_back(std::move(history));
  }
  return histories;
}

absl::StatusOr<std::vector<Load>> ReadStepLoads(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadLoadFile(path));
  std::vector<Load> loads;
  for (LoadWindow& window : file.windows) {
    const auto expected = static_cast<int64_t>(loads.size());
    if (window.first_step != expected || window.last_step != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", expected + 1, " covers steps ", window.first_step, "..",
                       window.last_step, ", expected only step ", expected));
    }
    loads.push_back(std::move(window.load));
  }
  return loads;
}

}  // namespace

absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  }
  RunDirectory run;
  EPLB_ASSIGN_OR_RETURN(run.report, ReadRunReport(directory + "/run.json"));
  EPLB_ASSIGN_OR_RETURN(run.histories, ReadHistories(directory, run.report.world_size));
  EPLB_ASSIGN_OR_RETURN(run.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  EPLB_ASSIGN_OR_RETURN(run.step_loads, ReadStepLoads(directory + "/loads.jsonl"));
  return run;
}

}  // namespace eplb
