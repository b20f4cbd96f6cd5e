// Reads placement files, and reads and writes the lines of placements.jsonl.
#include "proto/wire/placement_files.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

// Reads the keys about the decision that are given.
absl::Status ReadDecision(const wire::JsonValue& object, LoggedPlacement& entry) {
  for (const auto& [key, number] : {std::pair{"decided_first_step", &entry.decided_first_step},
                                    std::pair{"decided_last_step", &entry.decided_last_step},
                                    std::pair{"decision", &entry.decision}}) {
    if (object.Find(key) == nullptr) continue;
    EPLB_ASSIGN_OR_RETURN(*number, wire::GetInteger(object, key));
  }
  for (const auto& [key, text] :
       {std::pair{"policy", &entry.policy}, std::pair{"asked_by", &entry.asked_by},
        std::pair{"reason", &entry.reason}}) {
    if (object.Find(key) == nullptr) continue;
    EPLB_ASSIGN_OR_RETURN(*text, wire::GetString(object, key));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoggedPlacement> ParseLogLine(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(text));
  EPLB_ASSIGN_OR_RETURN(const int64_t step, wire::GetInteger(object, "step"));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, wire::GetInteger(object, "version"));
  EPLB_ASSIGN_OR_RETURN(const std::string hex, wire::GetString(object, "digest"));
  EPLB_ASSIGN_OR_RETURN(const Digest digest, Digest::FromHex(hex));
  const wire::JsonValue* body = object.Find("placement");
  if (body == nullptr) return InvalidInput("placement is missing");
  EPLB_ASSIGN_OR_RETURN(Placement placement, wire::PlacementFromJson(*body));
  if (step < 0 || version < 0) {
    return InvalidInput("step ", step, " and version ", version, " must be >= 0");
  }
  if (const Digest own = DigestOf(placement); own != digest) {
    return InvalidInput("digest is ", hex, ", that of its placement is ", own.Hex());
  }
  LoggedPlacement entry{
      .step = step, .version = version, .digest = digest, .placement = std::move(placement)};
  EPLB_RETURN_IF_ERROR(ReadDecision(object, entry));
  return entry;
}

absl::Status CheckRises(const LoggedPlacement& before, const LoggedPlacement& entry) {
  if (entry.step <= before.step) {
    return InvalidInput("step ", entry.step, " is not above the step before, ", before.step);
  }
  if (entry.version <= before.version) {
    return InvalidInput("version ", entry.version, " is not above the version before, ",
                        before.version);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<wire::PlacementWithShares> ReadPlacementWithShares(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  absl::StatusOr<wire::PlacementWithShares> both = wire::PlacementWithSharesFromJson(text);
  if (!both.ok()) return InFile(path, both.status());
  return both;
}

absl::StatusOr<Placement> ReadPlacementFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(wire::PlacementWithShares both, ReadPlacementWithShares(path));
  return std::move(both.placement);
}

absl::StatusOr<std::vector<LoggedPlacement>> ReadPlacementsLog(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  std::vector<LoggedPlacement> entries;
  for (const TextLine& line : SplitLines(text)) {
    absl::StatusOr<LoggedPlacement> entry = ParseLogLine(line.text);
    if (!entry.ok()) return InLine(path, line.number, entry.status());
    if (!entries.empty()) {
      if (const absl::Status status = CheckRises(entries.back(), *entry); !status.ok()) {
        return InLine(path, line.number, status);
      }
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

std::string PlacementsLogLine(const LoggedPlacement& entry) {
  return absl::StrCat("{\"step\":", entry.step, ",\"version\":", entry.version, ",\"digest\":\"",
                      entry.digest.Hex(), "\",\"decided_first_step\":", entry.decided_first_step,
                      ",\"decided_last_step\":", entry.decided_last_step,
                      ",\"decision\":", entry.decision,
                      ",\"policy\":", wire::JsonQuote(entry.policy),
                      ",\"asked_by\":", wire::JsonQuote(entry.asked_by),
                      ",\"reason\":", wire::JsonQuote(entry.reason),
                      ",\"placement\":", wire::PlacementToJson(entry.placement), "}");
}

}  // namespace eplb
