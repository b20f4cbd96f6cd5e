#include "client/files/run_directory.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/history_file.h"
#include "client/files/load_file.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

constexpr int32_t kMaxRunRanks = 1 << 20;

std::string HistoryPath(const std::string& directory, int32_t rank) {
  return absl::StrCat(directory, "/rank-", rank, ".jsonl");
}

absl::StatusOr<RankHistory> ReadHistory(const std::string& directory, int32_t rank) {
  const std::string path = HistoryPath(directory, rank);
  EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistoryFile(path));
  if (history.rank.value != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is the log of rank ", history.rank.value));
  }
  return history;
}

absl::StatusOr<std::vector<RankHistory>> ReadHistories(const std::string& directory,
                                                       int32_t world_size) {
  std::vector<RankHistory> histories;
  histories.reserve(static_cast<size_t>(world_size));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    EPLB_ASSIGN_OR_RETURN(RankHistory history, ReadHistory(directory, rank));
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

absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory) {
  RunLogs logs;
  int32_t world_size = 1;  // rank 0 must be there
  std::error_code error;
  while (world_size < kMaxRunRanks &&
         std::filesystem::exists(HistoryPath(directory, world_size), error)) {
    ++world_size;
  }
  EPLB_ASSIGN_OR_RETURN(logs.histories, ReadHistories(directory, world_size));
  EPLB_ASSIGN_OR_RETURN(logs.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  return logs;
}

std::vector<PlacementRecord> RecordsOf(const std::vector<LoggedPlacement>& placements) {
  std::vector<PlacementRecord> records;
  records.reserve(placements.size());
  for (const LoggedPlacement& placement : placements) {
    records.push_back({placement.step, placement.version, placement.digest, placement.placement});
  }
  return records;
}

absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  }
  RunDirectory run;
  EPLB_ASSIGN_OR_RETURN(run.report, ReadRunReport(directory + "/run.json"));
  EPLB_ASSIGN_OR_RETURN(run.histories, ReadHistories(directory, run.report.world_size));
  EPLB_ASSIGN_OR_RETURN(run.placements, ReadPlacementsLog(directory + "/placements.jsonl"));
  const std::string events = directory + "/events.json";
  if (std::filesystem::exists(events, error)) {
    EPLB_ASSIGN_OR_RETURN(run.events, ReadEventsFile(events));
  }
  EPLB_ASSIGN_OR_RETURN(run.step_loads, ReadStepLoads(directory + "/loads.jsonl"));
  return run;
}

}  // namespace eplb
