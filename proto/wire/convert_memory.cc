// Settings of a job and a daemon's memory of it, between protobuf and plain values.
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {

template <>
inline constexpr auto kFields<EndedRun> =
    std::tuple{Field{"run_id", &EndedRun::run_id}, Field{"run_number", &EndedRun::run_number}};

template <>
inline constexpr auto kFields<SavedTime> =
    std::tuple{Field{"earlier_seconds", &SavedTime::earlier_seconds},
               Field{"token_seconds", &SavedTime::token_seconds},
               Field{"peak_tokens", &SavedTime::peak_tokens},
               Field{"step_seconds", &SavedTime::step_seconds},
               Field{"windows", &SavedTime::windows},
               Field{"peak_peak", &SavedTime::peak_peak},
               Field{"peak_mean", &SavedTime::peak_mean},
               Field{"mean_mean", &SavedTime::mean_mean},
               Field{"peak_seconds", &SavedTime::peak_seconds},
               Field{"mean_seconds", &SavedTime::mean_seconds},
               Field{"seconds_seconds", &SavedTime::seconds_seconds},
               Field{"steps", &SavedTime::steps},
               Field{"of_batches", &SavedTime::of_batches},
               Field{"earlier_assumed", &SavedTime::earlier_assumed}};

template <>
inline constexpr auto kFields<JobMemory> =
    std::tuple{Field{"term", &JobMemory::term},
               Field{"serial", &JobMemory::serial},
               Field{"run_number", &JobMemory::run_number},
               Field{"run_id", &JobMemory::run_id},
               Field{"gone", &JobMemory::gone},
               Field{"paused", &JobMemory::paused},
               Field{"pause_reason", &JobMemory::pause_reason},
               Field{"quarantine", &JobMemory::quarantine},
               Field{"last_decision_step", &JobMemory::last_decision_step},
               Field{"back_off_length", &JobMemory::back_off_length},
               Field{"back_off_to_skip", &JobMemory::back_off_to_skip},
               Field{"account_windows", &JobMemory::account_windows},
               Field{"account_saved_peak_tokens", &JobMemory::account_saved_peak_tokens},
               Field{"account_pause_seconds", &JobMemory::account_pause_seconds},
               Field{"report_seconds", &JobMemory::report_seconds},
               Field{"gap_seconds", &JobMemory::gap_seconds},
               Field{"next_version", &JobMemory::next_version},
               Field{"slow_gpus", &JobMemory::slow_gpus, kMaxMemoryBytes},
               Field{"paused_by_lost_store", &JobMemory::paused_by_lost_store},
               Field{"saved", &JobMemory::saved}};

void ToProto(const SettingsPatch& patch, v1::PolicySettings* out) {
  for (const auto& [name, value] : patch) FindSetting(name)->Set(value, out);
}

absl::StatusOr<SettingsPatch> FromProto(const v1::PolicySettings& in) {
  SettingsPatch patch;
  for (const SettingRow& row : SettingRows()) {
    if (!in.GetReflection()->HasField(in, row.field)) continue;
    EPLB_ASSIGN_OR_RETURN(patch[row.name], row.Get(in));
  }
  return patch;
}

void ToProto(const JobMemory& memory, v1::JobMemory* out) {
  WriteFields(memory, out);
  ToProto(memory.settings, out->mutable_settings());
}

absl::StatusOr<JobMemory> FromProto(const v1::JobMemory& in) {
  JobMemory memory;
  EPLB_RETURN_IF_ERROR(ReadFields(in, &memory));
  if (memory.gone.size() > kMaxEndedRuns) {
    return InvalidInput("gone has ", memory.gone.size(), " runs, at most ", kMaxEndedRuns);
  }
  if (!ParseSpeeds(in.slow_gpus()).ok()) {
    return InvalidInput("slow_gpus is not a list of GPUs and speeds");
  }
  EPLB_ASSIGN_OR_RETURN(memory.settings, FromProto(in.settings()));
  return memory;
}

std::string MemoryBytes(const JobMemory& memory) {
  v1::JobMemory message;
  ToProto(memory, &message);
  return message.SerializeAsString();
}

absl::StatusOr<JobMemory> MemoryFromBytes(const std::string& bytes) {
  v1::JobMemory message;
  if (bytes.size() > kMaxMemoryBytes) {
    return InvalidInput("the memory has ", bytes.size(), " bytes, at most ", kMaxMemoryBytes);
  }
  if (!message.ParseFromString(bytes)) return InvalidInput("the memory is not one of a job");
  return FromProto(message);
}

void ToProto(const CarriedMemory& memory, std::string* out) {
  if (!memory.bytes.empty()) {
    *out = memory.bytes;
  } else if (memory.value) {
    *out = MemoryBytes(*memory.value);
  }
}

CarriedMemory CarriedFromBytes(const std::string& bytes) {
  CarriedMemory memory;
  if (bytes.empty() || bytes.size() > kMaxMemoryBytes) return memory;
  if (absl::StatusOr<JobMemory> value = MemoryFromBytes(bytes); value.ok()) {
    memory.value = *std::move(value);
  }
  memory.bytes = bytes;
  return memory;
}

}  // namespace eplb::wire
