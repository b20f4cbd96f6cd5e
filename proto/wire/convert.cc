#include "proto/wire/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxNameLength = 128;

// Template helper so that each variant alternative has one visitor.
template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

std::string_view AsView(const std::string& bytes) { return bytes; }

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

absl::Status CheckName(const char* field, std::string_view name, bool plain) {
  if (name.empty() || name.size() > kMaxNameLength) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", name.size(), " characters, expected 1..", kMaxNameLength));
  }
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool allowed = plain ? absl::ascii_isalnum(byte) || c == '.' || c == '_' || c == '-'
                               : absl::ascii_isgraph(byte);
    if (!allowed) {
      return absl::InvalidArgumentError(absl::StrCat(field, " has a character outside ",
                                                     plain ? "[A-Za-z0-9._-]" : "printable ASCII"));
    }
  }
  return absl::OkStatus();
}

TopologyOptions OptionsOf(const Topology& topology) {
  return {.num_layers = topology.num_layers(),
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .num_gpus = topology.num_gpus(),
          .num_nodes = topology.num_nodes(),
          .num_groups = topology.num_groups()};
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

// ---- up ----

void HelloToProto(const Hello& hello, v1::Hello* out) {
  out->set_job(hello.job);
  out->set_incarnation(hello.incarnation);
  out->set_nonce(hello.nonce);
  out->set_rank(static_cast<uint32_t>(hello.rank));
  out->set_world_size(static_cast<uint32_t>(hello.world_size));
  out->set_gpu(static_cast<uint32_t>(hello.gpu));
  out->set_lane(static_cast<uint32_t>(hello.lane));
  ToProto(hello.shape, out->mutable_shape());
  out->set_running_version(static_cast<uint64_t>(hello.running_version));
  SetDigest(hello.running_digest, out->mutable_running_digest());
  out->set_ready_version(static_cast<uint64_t>(hello.ready_version));
  out->set_highest_term(static_cast<uint64_t>(hello.highest_term));
  out->set_highest_version(static_cast<uint64_t>(hello.highest_version));
  out->set_step(static_cast<uint64_t>(hello.step));
  out->set_vote_every(static_cast<uint32_t>(hello.vote_every));
  out->set_report_every(static_cast<uint32_t>(hello.report_every));
  out->set_weight_bytes(static_cast<uint64_t>(hello.weight_bytes));
  out->set_state_bytes(static_cast<uint64_t>(hello.state_bytes));
  out->set_staging_rows(static_cast<uint64_t>(hello.staging_rows));
  out->set_library_version(hello.library_version);
}

absl::StatusOr<UpMessage> HelloFromProto(const v1::Hello& in) {
  Hello hello;
  EPLB_RETURN_IF_ERROR(CheckName("job", in.job(), /*plain=*/true));
  EPLB_RETURN_IF_ERROR(CheckName("incarnation", in.incarnation(), /*plain=*/false));
  hello.job = in.job();
  hello.incarnation = in.incarnation();
  hello.nonce = in.nonce();
  EPLB_ASSIGN_OR_RETURN(hello.rank, GetSmall("rank", in.rank()));
  EPLB_ASSIGN_OR_RETURN(hello.world_size, GetSmall("world_size", in.world_size()));
  EPLB_ASSIGN_OR_RETURN(hello.gpu, GetSmall("gpu", in.gpu()));
  EPLB_ASSIGN_OR_RETURN(hello.lane, GetSmall("lane", in.lane()));
  EPLB_ASSIGN_OR_RETURN(hello.shape, ShapeFromProto(in.shape()));
  EPLB_ASSIGN_OR_RETURN(hello.running_version, GetCount("running_version", in.running_version()));
  EPLB_ASSIGN_OR_RETURN(hello.running_digest, GetDigest("running_digest", in.running_digest()));
  EPLB_ASSIGN_OR_RETURN(hello.ready_version, GetCount("ready_version", in.ready_version()));
  EPLB_ASSIGN_OR_RETURN(hello.highest_term, GetCount("highest_term", in.highest_term()));
  EPLB_ASSIGN_OR_RETURN(hello.highest_version, GetCount("highest_version", in.highest_version()));
  EPLB_ASSIGN_OR_RETURN(hello.step, GetCount("step", in.step()));
  EPLB_ASSIGN_OR_RETURN(hello.vote_every, GetSmall("vote_every", in.vote_every()));
  EPLB_ASSIGN_OR_RETURN(hello.report_every, GetSmall("report_every", in.report_every()));
  EPLB_ASSIGN_OR_RETURN(hello.weight_bytes, GetCount("weight_bytes", in.weight_bytes()));
  EPLB_ASSIGN_OR_RETURN(hello.state_bytes, GetCount("state_bytes", in.state_bytes()));
  EPLB_ASSIGN_OR_RETURN(hello.staging_rows, GetCount("staging_rows", in.staging_rows()));
  hello.library_version = in.library_version();
  return hello;
}

template <class Cell>
std::string PackCounts(const LoadMatrix& counts) {
  std::string bytes(static_cast<size_t>(counts.size()) * sizeof(Cell), '\0');
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    const auto cell = static_cast<Cell>(counts.data()[i]);
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(Cell), &cell, sizeof(Cell));
  }
  return bytes;
}

void LoadReportToProto(const LoadReport& report, v1::LoadReport* out) {
  out->set_first_step(static_cast<uint64_t>(report.first_step));
  out->set_last_step(static_cast<uint64_t>(report.last_step));
  out->set_num_layers(static_cast<uint32_t>(report.counts.rows()));
  out->set_num_experts(static_cast<uint32_t>(report.counts.cols()));
  const bool fits = report.counts.size() == 0 ||
                    report.counts.maxCoeff() <= int64_t{std::numeric_limits<uint32_t>::max()};
  if (fits) {
    out->set_counts_u32(PackCounts<uint32_t>(report.counts));
  } else {
    out->set_counts_u64(PackCounts<uint64_t>(report.counts));
  }
  out->set_dropped_steps(static_cast<uint64_t>(report.dropped_steps));
}

template <class Cell>
absl::Status UnpackCounts(std::string_view bytes, LoadMatrix* counts) {
  if (bytes.size() != static_cast<size_t>(counts->size()) * sizeof(Cell)) {
    return absl::InvalidArgumentError(
        absl::StrCat("load report has ", bytes.size(), " bytes of counts, expected ",
                     counts->rows(), " layers x ", counts->cols(), " experts x ", sizeof(Cell)));
  }
  for (Eigen::Index i = 0; i < counts->size(); ++i) {
    Cell cell;
    std::memcpy(&cell, bytes.data() + static_cast<size_t>(i) * sizeof(Cell), sizeof(Cell));
    EPLB_ASSIGN_OR_RETURN(counts->data()[i], GetCount("load report count", cell));
  }
  return absl::OkStatus();
}

absl::StatusOr<UpMessage> LoadReportFromProto(const v1::LoadReport& in) {
  constexpr uint64_t kMaxCells = uint64_t{1} << 24;
  LoadReport report;
  EPLB_ASSIGN_OR_RETURN(report.first_step, GetCount("first_step", in.first_step()));
  EPLB_ASSIGN_OR_RETURN(report.last_step, GetCount("last_step", in.last_step()));
  EPLB_ASSIGN_OR_RETURN(report.dropped_steps, GetCount("dropped_steps", in.dropped_steps()));
  if (report.last_step < report.first_step) {
    return absl::InvalidArgumentError(absl::StrCat("load report covers steps ", report.first_step,
                                                   "..", report.last_step,
                                                   ", the last is below the first"));
  }
  if (in.num_layers() == 0 || in.num_experts() == 0 ||
      uint64_t{in.num_layers()} * in.num_experts() > kMaxCells) {
    return absl::InvalidArgumentError(absl::StrCat("load report is ", in.num_layers(), " layers x ",
                                                   in.num_experts(), " experts, expected 1..",
                                                   kMaxCells, " cells"));
  }
  if (in.counts_u32().empty() == in.counts_u64().empty()) {
    return absl::InvalidArgumentError(
        "load report must set exactly one of counts_u32 and counts_u64");
  }
  // Checked before allocating, so that a short message cannot ask for much memory.
  const uint64_t cells = uint64_t{in.num_layers()} * in.num_experts();
  const bool narrow = !in.counts_u32().empty();
  if ((narrow ? in.counts_u32().size() / 4 : in.counts_u64().size() / 8) != cells) {
    return absl::InvalidArgumentError(
        absl::StrCat("load report has counts for ",
                     narrow ? in.counts_u32().size() / 4 : in.counts_u64().size() / 8,
                     " cells, expected ", cells));
  }
  report.counts.resize(in.num_layers(), in.num_experts());
  EPLB_RETURN_IF_ERROR(narrow ? UnpackCounts<uint32_t>(AsView(in.counts_u32()), &report.counts)
                              : UnpackCounts<uint64_t>(AsView(in.counts_u64()), &report.counts));
  return report;
}

absl::StatusOr<UpMessage> ReadyFromProto(const v1::Ready& in) {
  Ready ready;
  EPLB_ASSIGN_OR_RETURN(ready.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(ready.digest, GetDigest("digest", in.digest()));
  EPLB_ASSIGN_OR_RETURN(ready.plan_hash, GetDigest("plan_hash", in.plan_hash()));
  return ready;
}

absl::StatusOr<UpMessage> NackFromProto(const v1::Nack& in) {
  Nack nack;
  EPLB_ASSIGN_OR_RETURN(nack.version, GetCount("version", in.version()));
  if (!v1::Nack::Code_IsValid(in.code()) || in.code() == v1::Nack::CODE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("nack code ", static_cast<int>(in.code()), " is unknown"));
  }
  nack.code = static_cast<NackCode>(in.code());
  nack.detail = in.detail();
  return nack;
}

absl::StatusOr<UpMessage> AppliedFromProto(const v1::Applied& in) {
  Applied applied;
  EPLB_ASSIGN_OR_RETURN(applied.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(applied.digest, GetDigest("digest", in.digest()));
  EPLB_ASSIGN_OR_RETURN(applied.step, GetCount("step", in.step()));
  EPLB_ASSIGN_OR_RETURN(applied.received_bytes, GetCount("received_bytes", in.received_bytes()));
  if (!(in.pause_seconds() >= 0 && in.pause_seconds() < 1e9)) {
    return absl::InvalidArgumentError(absl::StrCat("pause_seconds is ", in.pause_seconds()));
  }
  applied.pause_seconds = in.pause_seconds();
  return applied;
}

absl::StatusOr<UpMessage> FailedFromProto(const v1::Failed& in) {
  Failed failed;
  EPLB_ASSIGN_OR_RETURN(failed.version, GetCount("version", in.version()));
  if (!v1::Failed::Code_IsValid(in.code()) || in.code() == v1::Failed::CODE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("failed code ", static_cast<int>(in.code()), " is unknown"));
  }
  failed.code = static_cast<FailedCode>(in.code());
  failed.detail = in.detail();
  EPLB_ASSIGN_OR_RETURN(failed.step, GetCount("step", in.step()));
  return failed;
}

absl::StatusOr<UpMessage> GoodbyeFromProto(const v1::Goodbye& in) {
  Goodbye goodbye{.reason = in.reason(), .missing_ranks = {}, .failed = in.failed()};
  for (const uint32_t rank : in.missing_ranks()) {
    EPLB_ASSIGN_OR_RETURN(const int32_t missing, GetSmall("missing_ranks", rank));
    goodbye.missing_ranks.push_back(missing);
  }
  return goodbye;
}

// ---- down ----

void ProposeToProto(const Propose& propose, v1::Propose* out) {
  out->set_term(static_cast<uint64_t>(propose.term));
  out->set_version(static_cast<uint64_t>(propose.version));
  out->set_base_version(static_cast<uint64_t>(propose.base_version));
  SetDigest(propose.base_digest, out->mutable_base_digest());
  SetDigest(propose.digest, out->mutable_digest());
  for (const LayerPlacement& layer : propose.layers) ToProto(layer, out->add_layers());
  out->set_chunk(static_cast<uint32_t>(propose.chunk));
  out->set_num_chunks(static_cast<uint32_t>(propose.num_chunks));
  out->set_reason(propose.reason);
}

absl::StatusOr<DownMessage> ProposeFromProto(const v1::Propose& in) {
  Propose propose;
  EPLB_ASSIGN_OR_RETURN(propose.term, GetCount("term", in.term()));
  EPLB_ASSIGN_OR_RETURN(propose.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(propose.base_version, GetCount("base_version", in.base_version()));
  EPLB_ASSIGN_OR_RETURN(propose.base_digest, GetDigest("base_digest", in.base_digest()));
  EPLB_ASSIGN_OR_RETURN(propose.digest, GetDigest("digest", in.digest()));
  for (const v1::LayerPlacement& layer : in.layers()) propose.layers.push_back(FromProto(layer));
  EPLB_ASSIGN_OR_RETURN(propose.chunk, GetSmall("chunk", in.chunk()));
  EPLB_ASSIGN_OR_RETURN(propose.num_chunks, GetSmall("num_chunks", in.num_chunks()));
  propose.reason = in.reason();
  return propose;
}

absl::StatusOr<DownMessage> WelcomeFromProto(const v1::Welcome& in) {
  Welcome welcome;
  EPLB_ASSIGN_OR_RETURN(welcome.term, GetCount("term", in.term()));
  welcome.server_version = in.server_version();
  return welcome;
}

absl::StatusOr<DownMessage> RetractFromProto(const v1::Retract& in) {
  Retract retract;
  EPLB_ASSIGN_OR_RETURN(retract.version, GetCount("version", in.version()));
  retract.reason = in.reason();
  return retract;
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
                                                   " layers, its shape says ",
                                                   topology.num_layers()));
  }
  std::vector<LayerPlacement> layers;
  layers.reserve(static_cast<size_t>(placement.layers_size()));
  for (const v1::LayerPlacement& layer : placement.layers()) layers.push_back(FromProto(layer));
  EPLB_ASSIGN_OR_RETURN(Placement value, Placement::Static(topology).WithLayers(layers));
  if (DigestOf(value) != digest) {
    return absl::InvalidArgumentError(absl::StrCat("placement.digest is ", digest.Hex(),
                                                   ", the maps give ", DigestOf(value).Hex()));
  }
  return PlacementBody{version, digest, std::move(value)};
}

void ToProto(const UpMessage& message, v1::Up* out) {
  std::visit(
      Overloaded{[&](const Hello& m) { HelloToProto(m, out->mutable_hello()); },
                 [&](const LoadReport& m) { LoadReportToProto(m, out->mutable_load_report()); },
                 [&](const Ready& m) {
                   v1::Ready* ready = out->mutable_ready();
                   ready->set_version(static_cast<uint64_t>(m.version));
                   SetDigest(m.digest, ready->mutable_digest());
                   SetDigest(m.plan_hash, ready->mutable_plan_hash());
                 },
                 [&](const Nack& m) {
                   v1::Nack* nack = out->mutable_nack();
                   nack->set_version(static_cast<uint64_t>(m.version));
                   nack->set_code(static_cast<v1::Nack::Code>(m.code));
                   nack->set_detail(m.detail);
                 },
                 [&](const Applied& m) {
                   v1::Applied* applied = out->mutable_applied();
                   applied->set_version(static_cast<uint64_t>(m.version));
                   SetDigest(m.digest, applied->mutable_digest());
                   applied->set_step(static_cast<uint64_t>(m.step));
                   applied->set_received_bytes(static_cast<uint64_t>(m.received_bytes));
                   applied->set_pause_seconds(m.pause_seconds);
                 },
                 [&](const Failed& m) {
                   v1::Failed* failed = out->mutable_failed();
                   failed->set_version(static_cast<uint64_t>(m.version));
                   failed->set_code(static_cast<v1::Failed::Code>(m.code));
                   failed->set_detail(m.detail);
                   failed->set_step(static_cast<uint64_t>(m.step));
                 },
                 [&](const PlacementBody& m) {
                   ToProto(m.placement, m.version,
                           out->mutable_placement_body()->mutable_placement());
                 },
                 [&](const Goodbye& m) {
                   v1::Goodbye* goodbye = out->mutable_goodbye();
                   goodbye->set_reason(m.reason);
                   goodbye->mutable_missing_ranks()->Assign(m.missing_ranks.begin(),
                                                            m.missing_ranks.end());
                   goodbye->set_failed(m.failed);
                 }},
      message);
}

void ToProto(const DownMessage& message, v1::Down* out) {
  std::visit(
      Overloaded{[&](const Welcome& m) {
                   out->mutable_welcome()->set_term(static_cast<uint64_t>(m.term));
                   out->mutable_welcome()->set_server_version(m.server_version);
                 },
                 [&](const Propose& m) { ProposeToProto(m, out->mutable_propose()); },
                 [&](const Retract& m) {
                   out->mutable_retract()->set_version(static_cast<uint64_t>(m.version));
                   out->mutable_retract()->set_reason(m.reason);
                 },
                 [&](const Pace& m) {
                   out->mutable_pace()->set_report_every(static_cast<uint32_t>(m.report_every));
                 },
                 [&](const NeedPlacement& m) {
                   SetDigest(m.digest, out->mutable_need_placement()->mutable_digest());
                 },
                 [&](const Drain& m) {
                   out->mutable_drain()->set_grace_ms(static_cast<uint32_t>(m.grace_ms));
                 }},
      message);
}

absl::StatusOr<UpMessage> FromProto(const v1::Up& message) {
  switch (message.message_case()) {
    case v1::Up::kHello:
      return HelloFromProto(message.hello());
    case v1::Up::kLoadReport:
      return LoadReportFromProto(message.load_report());
    case v1::Up::kReady:
      return ReadyFromProto(message.ready());
    case v1::Up::kNack:
      return NackFromProto(message.nack());
    case v1::Up::kApplied:
      return AppliedFromProto(message.applied());
    case v1::Up::kFailed:
      return FailedFromProto(message.failed());
    case v1::Up::kPlacementBody: {
      EPLB_ASSIGN_OR_RETURN(PlacementBody body, FromProto(message.placement_body().placement()));
      return body;
    }
    case v1::Up::kGoodbye:
      return GoodbyeFromProto(message.goodbye());
    case v1::Up::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the stream message is empty or of an unknown kind");
}

absl::StatusOr<DownMessage> FromProto(const v1::Down& message) {
  switch (message.message_case()) {
    case v1::Down::kWelcome:
      return WelcomeFromProto(message.welcome());
    case v1::Down::kPropose:
      return ProposeFromProto(message.propose());
    case v1::Down::kRetract:
      return RetractFromProto(message.retract());
    case v1::Down::kPace: {
      EPLB_ASSIGN_OR_RETURN(const int32_t every,
                            GetSmall("report_every", message.pace().report_every()));
      return Pace{every};
    }
    case v1::Down::kNeedPlacement: {
      EPLB_ASSIGN_OR_RETURN(const Digest digest,
                            GetDigest("digest", message.need_placement().digest()));
      return NeedPlacement{digest};
    }
    case v1::Down::kDrain: {
      EPLB_ASSIGN_OR_RETURN(const int32_t grace, GetSmall("grace_ms", message.drain().grace_ms()));
      return Drain{grace};
    }
    case v1::Down::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the stream message is empty or of an unknown kind");
}

}  // namespace eplb::wire
