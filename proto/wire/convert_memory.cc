#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/clipped.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {
namespace {

absl::StatusOr<double> GetReal(const char* field, double value) {
  if (std::isfinite(value)) return value;
  return absl::InvalidArgumentError(absl::StrCat(field, " is not finite"));
}

int64_t Clamped(uint64_t value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(value, kMost));
}

// Far above what CheckPatch allows. Up to here a double of seconds and a Duration say the same.
constexpr double kMaxPauseSeconds = 1e6;

}  // namespace

void ToProto(const PolicyPatch& patch, v1::PolicySettings* out) {
  if (patch.policy_name) out->set_name(*patch.policy_name);
  if (patch.mode) out->set_mode(*patch.mode);
  if (patch.every_steps) out->set_every_steps(static_cast<uint32_t>(*patch.every_steps));
  if (patch.min_gain) out->set_min_gain(*patch.min_gain);
  if (patch.horizon_steps) out->set_horizon_steps(static_cast<uint64_t>(*patch.horizon_steps));
  if (patch.freeze_steps) out->set_freeze_steps(*patch.freeze_steps);
  if (patch.max_pause) out->set_max_pause_seconds(absl::ToDoubleSeconds(*patch.max_pause));
  if (patch.layers_per_chunk) {
    out->set_layers_per_chunk(static_cast<uint32_t>(*patch.layers_per_chunk));
  }
}

absl::StatusOr<PolicyPatch> FromProto(const v1::PolicySettings& in) {
  PolicyPatch patch;
  if (in.has_name()) patch.policy_name = in.name();
  if (in.has_mode()) patch.mode = in.mode();
  if (in.has_every_steps()) {
    EPLB_ASSIGN_OR_RETURN(patch.every_steps, GetSmall("every_steps", in.every_steps()));
  }
  if (in.has_min_gain()) {
    EPLB_ASSIGN_OR_RETURN(patch.min_gain, GetReal("min_gain", in.min_gain()));
  }
  if (in.has_horizon_steps()) patch.horizon_steps = Clamped(in.horizon_steps());
  if (in.has_freeze_steps()) patch.freeze_steps = in.freeze_steps();
  if (in.has_max_pause_seconds()) {
    EPLB_ASSIGN_OR_RETURN(const double seconds,
                          GetReal("max_pause_seconds", in.max_pause_seconds()));
    if (std::abs(seconds) > kMaxPauseSeconds) {
      return absl::InvalidArgumentError("max_pause_seconds is out of range");
    }
    patch.max_pause = absl::Seconds(seconds);
  }
  if (in.has_layers_per_chunk()) {
    EPLB_ASSIGN_OR_RETURN(patch.layers_per_chunk,
                          GetSmall("layers_per_chunk", in.layers_per_chunk()));
  }
  return patch;
}

void ToProto(const JobMemory& memory, v1::JobMemory* out) {
  out->set_term(static_cast<uint64_t>(memory.term));
  out->set_serial(static_cast<uint64_t>(memory.serial));
  out->set_launch(static_cast<uint64_t>(memory.launch));
  out->set_incarnation(memory.incarnation);
  for (const GoneLaunch& gone : memory.gone) {
    v1::JobMemory::GoneLaunch* one = out->add_gone();
    one->set_incarnation(gone.incarnation);
    one->set_launch(static_cast<uint64_t>(gone.launch));
  }
  out->set_paused(memory.paused);
  out->set_pause_reason(Clipped(memory.pause_reason));
  ToProto(memory.settings, out->mutable_settings());
  out->set_quarantine(Clipped(memory.quarantine));
  if (memory.last_decision_step) {
    out->set_last_decision_step(static_cast<uint64_t>(*memory.last_decision_step));
  }
  out->set_back_off_length(static_cast<uint32_t>(memory.back_off_length));
  out->set_back_off_to_skip(static_cast<uint32_t>(memory.back_off_to_skip));
  out->set_account_windows(static_cast<uint64_t>(memory.account_windows));
  out->set_account_saved_peak_tokens(memory.account_saved_peak_tokens);
  out->set_account_pause_seconds(memory.account_pause_seconds);
  out->set_record_spent_seconds(memory.record_spent_seconds);
  out->set_record_saved_tokens(memory.record_saved_tokens);
  out->set_record_start_tokens(memory.record_start_tokens);
  out->set_report_seconds(memory.report_seconds);
  out->set_gap_seconds(memory.gap_seconds);
  out->set_next_version(static_cast<uint64_t>(memory.next_version));
}

absl::StatusOr<JobMemory> FromProto(const v1::JobMemory& in) {
  JobMemory memory;
  EPLB_ASSIGN_OR_RETURN(memory.term, GetCount("term", in.term()));
  EPLB_ASSIGN_OR_RETURN(memory.serial, GetCount("serial", in.serial()));
  EPLB_ASSIGN_OR_RETURN(memory.launch, GetCount("launch", in.launch()));
  memory.incarnation = Clipped(in.incarnation());
  if (in.gone_size() > static_cast<int>(kMaxGoneLaunches)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gone has ", in.gone_size(), " launches, at most ", kMaxGoneLaunches));
  }
  for (const v1::JobMemory::GoneLaunch& gone : in.gone()) {
    EPLB_ASSIGN_OR_RETURN(const int64_t launch, GetCount("gone.launch", gone.launch()));
    memory.gone.push_back({Clipped(gone.incarnation()), launch});
  }
  memory.paused = in.paused();
  memory.pause_reason = Clipped(in.pause_reason());
  EPLB_ASSIGN_OR_RETURN(memory.settings, FromProto(in.settings()));
  memory.quarantine = Clipped(in.quarantine());
  if (in.has_last_decision_step()) {
    EPLB_ASSIGN_OR_RETURN(memory.last_decision_step,
                          GetCount("last_decision_step", in.last_decision_step()));
  }
  EPLB_ASSIGN_OR_RETURN(memory.back_off_length, GetSmall("back_off_length", in.back_off_length()));
  EPLB_ASSIGN_OR_RETURN(memory.back_off_to_skip,
                        GetSmall("back_off_to_skip", in.back_off_to_skip()));
  EPLB_ASSIGN_OR_RETURN(memory.account_windows, GetCount("account_windows", in.account_windows()));
  EPLB_ASSIGN_OR_RETURN(memory.next_version, GetCount("next_version", in.next_version()));
  struct Real {
    const char* name;
    double value;
    double* out;
  };
  for (const Real& real :
       {Real{"account_saved_peak_tokens", in.account_saved_peak_tokens(),
             &memory.account_saved_peak_tokens},
        Real{"account_pause_seconds", in.account_pause_seconds(), &memory.account_pause_seconds},
        Real{"record_spent_seconds", in.record_spent_seconds(), &memory.record_spent_seconds},
        Real{"record_saved_tokens", in.record_saved_tokens(), &memory.record_saved_tokens},
        Real{"record_start_tokens", in.record_start_tokens(), &memory.record_start_tokens},
        Real{"report_seconds", in.report_seconds(), &memory.report_seconds},
        Real{"gap_seconds", in.gap_seconds(), &memory.gap_seconds}}) {
    EPLB_ASSIGN_OR_RETURN(*real.out, GetReal(real.name, real.value));
  }
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
    return absl::InvalidArgumentError(
        absl::StrCat("the memory has ", bytes.size(), " bytes, at most ", kMaxMemoryBytes));
  }
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("the memory is not one of a job");
  }
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
