#include "proto/wire/convert_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/unknown_field_set.h>

#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"

namespace eplb::wire {

void SetDigest(const Digest& digest, std::string* out) {
  out->assign(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

absl::StatusOr<Digest> GetDigest(const char* field, std::string_view bytes) {
  Digest digest;
  if (bytes.size() != digest.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes, expected 32"));
  }
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

absl::StatusOr<int64_t> GetCount(const char* field, uint64_t value) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", above 2^63-1"));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int32_t> GetSmall(const char* field, uint32_t value) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", above 2^31-1"));
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<TopologyOptions> ShapeFromProto(const v1::Shape& shape) {
  TopologyOptions options;
  EPLB_ASSIGN_OR_RETURN(options.num_layers, GetSmall("shape.num_layers", shape.num_layers()));
  EPLB_ASSIGN_OR_RETURN(options.num_experts, GetSmall("shape.num_experts", shape.num_experts()));
  EPLB_ASSIGN_OR_RETURN(options.num_slots, GetSmall("shape.num_slots", shape.num_slots()));
  EPLB_ASSIGN_OR_RETURN(options.num_gpus, GetSmall("shape.num_gpus", shape.num_gpus()));
  EPLB_ASSIGN_OR_RETURN(options.num_nodes, GetSmall("shape.num_nodes", shape.num_nodes()));
  EPLB_ASSIGN_OR_RETURN(options.num_groups, GetSmall("shape.num_groups", shape.num_groups()));
  return options;
}

absl::Status NoKnownKind(const google::protobuf::Message& message) {
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::InvalidArgumentError("the stream message is empty");
  return absl::UnimplementedError(absl::StrCat("the stream message is of the unknown kind ",
                                               unknown.field(0).number(), ", of a later version"));
}

namespace {

TopologyOptions OptionsOf(const Topology& topology) {
  return {.num_layers = topology.num_layers(),
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .num_gpus = topology.num_gpus(),
          .num_nodes = topology.num_nodes(),
          .num_groups = topology.num_groups()};
}

}  // namespace

void ToProto(const TopologyOptions& shape, v1::Shape* out) {
  out->set_num_layers(static_cast<uint32_t>(shape.num_layers));
  out->set_num_experts(static_cast<uint32_t>(shape.num_experts));
  out->set_num_slots(static_cast<uint32_t>(shape.num_slots));
  out->set_num_gpus(static_cast<uint32_t>(shape.num_gpus));
  out->set_num_nodes(static_cast<uint32_t>(shape.num_nodes));
  out->set_num_groups(static_cast<uint32_t>(shape.num_groups));
}

absl::StatusOr<Topology> FromProto(const v1::Shape& shape) {
  EPLB_ASSIGN_OR_RETURN(const TopologyOptions options, ShapeFromProto(shape));
  return Topology::Make(options);
}

void ToProto(const LayerPlacement& layer, v1::LayerPlacement* out) {
  out->set_layer(static_cast<uint32_t>(layer.layer.value));
  out->mutable_physical_to_logical_map()->Assign(layer.physical_to_logical.begin(),
                                                 layer.physical_to_logical.end());
  out->mutable_replica_rank()->Assign(layer.replica_rank.begin(), layer.replica_rank.end());
}

LayerPlacement FromProto(const v1::LayerPlacement& layer) {
  // A number above 2^31-1 becomes negative here and is refused as a layer out of range later.
  return {LayerId{static_cast<int32_t>(layer.layer())},
          {layer.physical_to_logical_map().begin(), layer.physical_to_logical_map().end()},
          {layer.replica_rank().begin(), layer.replica_rank().end()}};
}

void ToProto(const Placement& placement, int64_t version, v1::Placement* out) {
  ToProto(OptionsOf(placement.topology()), out->mutable_shape());
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    ToProto(placement.Layer(LayerId{layer}), out->add_layers());
  }
  out->set_version(static_cast<uint64_t>(version));
  SetDigest(DigestOf(placement), out->mutable_digest());
}

absl::StatusOr<PlacementBody> FromProto(const v1::Placement& placement) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, FromProto(placement.shape()));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, GetCount("placement.version", placement.version()));
  EPLB_ASSIGN_OR_RETURN(const Digest digest, GetDigest("placement.digest", placement.digest()));
  if (placement.layers_size() != topology.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("placement has ", placement.layers_size(),
                                                   " layers, its shape has ",
                                                   topology.num_layers()));
  }
  std::vector<LayerPlacement> layers;
  layers.reserve(static_cast<size_t>(placement.layers_size()));
  for (const v1::LayerPlacement& layer : placement.layers()) {
    // Before anything of the shape's size is allocated: a short message cannot ask for much memory.
    if (layer.physical_to_logical_map_size() != topology.num_slots()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "placement layer ", layer.layer(), " has ", layer.physical_to_logical_map_size(),
          " slots, its shape has ", topology.num_slots()));
    }
    layers.push_back(FromProto(layer));
  }
  EPLB_ASSIGN_OR_RETURN(Placement value, Placement::Static(topology).WithLayers(layers));
  if (DigestOf(value) != digest) {
    return absl::InvalidArgumentError(absl::StrCat("placement.digest is ", digest.Hex(),
                                                   ", the maps give ", DigestOf(value).Hex()));
  }
  return PlacementBody{version, digest, std::move(value)};
}

namespace {

constexpr int kMaxSettings = 32;
constexpr size_t kMaxName = 64;    // bytes
constexpr size_t kMaxValue = 128;  // bytes

}  // namespace

void ToProto(const TransportInfo& transport, v1::TransportInfo* out) {
  out->set_name(transport.name);
  out->set_fallback_reason(transport.fallback_reason);
  if (transport.device.has_value()) out->set_device(static_cast<uint32_t>(*transport.device));
  out->set_device_name(transport.device_name);
  out->set_nccl_version(transport.nccl_version);
  out->set_nccl_library(transport.nccl_library);
  for (const TransportInfo::Setting& setting : transport.settings) {
    v1::TransportInfo::Setting* added = out->add_settings();
    added->set_name(setting.name);
    added->set_value(setting.value);
  }
}

absl::StatusOr<TransportInfo> FromProto(const v1::TransportInfo& in) {
  TransportInfo transport{.name = Clipped(in.name(), kMaxName),
                          .fallback_reason = Clipped(in.fallback_reason()),
                          .device = std::nullopt,
                          .device_name = Clipped(in.device_name(), kMaxValue),
                          .nccl_version = Clipped(in.nccl_version(), kMaxValue),
                          .nccl_library = Clipped(in.nccl_library()),
                          .settings = {}};
  if (in.has_device()) {
    EPLB_ASSIGN_OR_RETURN(transport.device, GetSmall("transport.device", in.device()));
  }
  const int num_settings = std::min(in.settings_size(), kMaxSettings);
  for (int i = 0; i < num_settings; ++i) {
    transport.settings.push_back({.name = Clipped(in.settings(i).name(), kMaxName),
                                  .value = Clipped(in.settings(i).value(), kMaxValue)});
  }
  return transport;
}

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
  if (std::abs(number) > kMaxSettingSeconds) {
    return absl::InvalidArgumentError(absl::StrCat(field.name(), " is out of range"));
  }
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
  out->set_term(static_cast<uint64_t>(memory.term));
  out->set_serial(static_cast<uint64_t>(memory.serial));
  out->set_run_number(static_cast<uint64_t>(memory.run_number));
  out->set_run_id(memory.run_id);
  for (const EndedRun& gone : memory.gone) {
    v1::JobMemory::EndedRun* one = out->add_gone();
    one->set_run_id(gone.run_id);
    one->set_run_number(static_cast<uint64_t>(gone.run_number));
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
  if (memory.account_saved_peak_tokens) {
    out->set_account_saved_peak_tokens(*memory.account_saved_peak_tokens);
  }
  out->set_account_pause_seconds(memory.account_pause_seconds);
  out->set_report_seconds(memory.report_seconds);
  out->set_gap_seconds(memory.gap_seconds);
  out->set_next_version(static_cast<uint64_t>(memory.next_version));
  out->set_slow_gpus(memory.slow_gpus);
  out->set_paused_by_lost_store(memory.paused_by_lost_store);
}

absl::StatusOr<JobMemory> FromProto(const v1::JobMemory& in) {
  JobMemory memory;
  EPLB_ASSIGN_OR_RETURN(memory.term, GetCount("term", in.term()));
  EPLB_ASSIGN_OR_RETURN(memory.serial, GetCount("serial", in.serial()));
  EPLB_ASSIGN_OR_RETURN(memory.run_number, GetCount("run_number", in.run_number()));
  memory.run_id = Clipped(in.run_id());
  if (in.gone_size() > static_cast<int>(kMaxEndedRuns)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gone has ", in.gone_size(), " runs, at most ", kMaxEndedRuns));
  }
  for (const v1::JobMemory::EndedRun& gone : in.gone()) {
    EPLB_ASSIGN_OR_RETURN(const int64_t run_number, GetCount("gone.run_number", gone.run_number()));
    memory.gone.push_back({Clipped(gone.run_id()), run_number});
  }
  memory.paused = in.paused();
  memory.pause_reason = Clipped(in.pause_reason());
  memory.paused_by_lost_store = in.paused_by_lost_store();
  EPLB_ASSIGN_OR_RETURN(memory.settings, FromProto(in.settings()));
  memory.quarantine = Clipped(in.quarantine());
  if (!ParseSpeeds(in.slow_gpus()).ok()) {
    return absl::InvalidArgumentError("slow_gpus is not a list of GPUs and speeds");
  }
  memory.slow_gpus = in.slow_gpus();
  if (in.has_last_decision_step()) {
    EPLB_ASSIGN_OR_RETURN(memory.last_decision_step,
                          GetCount("last_decision_step", in.last_decision_step()));
  }
  EPLB_ASSIGN_OR_RETURN(memory.back_off_length, GetSmall("back_off_length", in.back_off_length()));
  EPLB_ASSIGN_OR_RETURN(memory.back_off_to_skip,
                        GetSmall("back_off_to_skip", in.back_off_to_skip()));
  EPLB_ASSIGN_OR_RETURN(memory.account_windows, GetCount("account_windows", in.account_windows()));
  EPLB_ASSIGN_OR_RETURN(memory.next_version, GetCount("next_version", in.next_version()));
  if (in.has_account_saved_peak_tokens()) {
    EPLB_ASSIGN_OR_RETURN(memory.account_saved_peak_tokens,
                          GetReal("account_saved_peak_tokens", in.account_saved_peak_tokens()));
  }
  struct Real {
    const char* name;
    double value;
    double* out;
  };
  for (const Real& real :
       {Real{"account_pause_seconds", in.account_pause_seconds(), &memory.account_pause_seconds},
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
