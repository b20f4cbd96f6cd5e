// Settings of a job and a daemon's memory of it, between protobuf and plain values.
#include <algorithm>
#include <cmath>
#include <limits>
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
               Field{"paused_by_lost_store", &JobMemory::paused_by_lost_store}};

namespace {

int64_t Clamped(uint64_t value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(value, kMost));
}

// Far above what CheckPatch allows. Up to here a double of seconds and a Duration say the same.
constexpr double kMaxSettingSeconds = 1e6;

using google::protobuf::FieldDescriptor;

const FieldDescriptor& FieldOf(const SettingRow& row) {
  return *v1::PolicySettings::descriptor()->FindFieldByName(std::string(row.field));
}

void SetField(const FieldDescriptor& field, const Scalar& value, v1::PolicySettings* out) {
  const google::protobuf::Reflection& reflection = *out->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(out, &field, std::get<std::string>(value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(out, &field, static_cast<uint32_t>(std::get<int64_t>(value)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(out, &field, static_cast<uint64_t>(std::get<int64_t>(value)));
    default:  // double, of a number or of seconds
      break;
  }
  const auto* duration = std::get_if<absl::Duration>(&value);
  reflection.SetDouble(
      out, &field,
      duration != nullptr ? absl::ToDoubleSeconds(*duration) : std::get<double>(value));
}

// REQUIRES: the field is set. errors: InvalidArgument naming it.
absl::StatusOr<Scalar> GetField(const SettingRow& row, const v1::PolicySettings& in) {
  const FieldDescriptor& field = FieldOf(row);
  const google::protobuf::Reflection& reflection = *in.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(in, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return GetSmall(field.name().c_str(), reflection.GetUInt32(in, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return Clamped(reflection.GetUInt64(in, &field));
    default:
      break;
  }
  EPLB_ASSIGN_OR_RETURN(const double number,
                        GetReal(field.name().c_str(), reflection.GetDouble(in, &field)));
  if (!std::holds_alternative<DurationRange>(row.range)) return number;
  if (std::abs(number) > kMaxSettingSeconds) return InvalidInput(field.name(), " is out of range");
  return absl::Seconds(number);
}

}  // namespace

void ToProto(const SettingsPatch& patch, v1::PolicySettings* out) {
  for (const SettingRow& row : SettingRows()) {
    if (const std::optional<Scalar> value = row.get_given(patch)) {
      SetField(FieldOf(row), *value, out);
    }
  }
}

absl::StatusOr<SettingsPatch> FromProto(const v1::PolicySettings& in) {
  SettingsPatch patch;
  for (const SettingRow& row : SettingRows()) {
    if (!in.GetReflection()->HasField(in, &FieldOf(row))) continue;
    EPLB_ASSIGN_OR_RETURN(const Scalar value, GetField(row, in));
    row.set_given(value, &patch);
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
