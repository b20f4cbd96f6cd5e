#include "proto/wire/convert.h"

#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/convert_values.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/messages.h"

#include "eplb/v1/session.pb.h"

namespace eplb::wire {

void LoadReportToProto(const LoadReport& report, v1::LoadReport* out);

// Takes the bytes of packed counts out of the message. Sizes are checked before memory is made.
// errors: InvalidArgument, naming the field: steps that go backwards, counts of the wrong length or
// above 2^63-1, more than kMaxLoadParts parts, parts that are told and said to be unknown.
absl::StatusOr<UpMessage> LoadReportFromProto(v1::LoadReport& in);

namespace {

static_assert(static_cast<int>(NackCode::kStaleTerm) == v1::Nack::STALE_TERM);
static_assert(static_cast<int>(NackCode::kBusy) == v1::Nack::Code_MAX);
static_assert(static_cast<int>(FailedCode::kCancelled) == v1::Failed::CANCELLED);
static_assert(static_cast<int>(FailedCode::kSuperseded) == v1::Failed::Code_MAX);

void HelloToProto(const Hello& hello, v1::Hello* out) {
  out->set_job(hello.job);
  out->set_run_id(hello.run_id);
  out->set_nonce(hello.nonce);
  out->set_rank(static_cast<uint32_t>(hello.rank));
  out->set_world_size(static_cast<uint32_t>(hello.world_size));
  out->set_gpu(static_cast<uint32_t>(hello.gpu));
  out->set_ep_group(static_cast<uint32_t>(hello.ep_group));
  ToProto(hello.shape, out->mutable_shape());
  out->set_running_version(static_cast<uint64_t>(hello.running_version));
  SetDigest(hello.running_digest, out->mutable_running_digest());
  out->set_prepared_version(static_cast<uint64_t>(hello.prepared_version));
  out->set_highest_term(static_cast<uint64_t>(hello.highest_term));
  out->set_highest_version(static_cast<uint64_t>(hello.highest_version));
  out->set_step(static_cast<uint64_t>(hello.step));
  out->set_vote_every(static_cast<uint32_t>(hello.vote_every));
  out->set_report_every(static_cast<uint32_t>(hello.report_every));
  out->set_weight_bytes(static_cast<uint64_t>(hello.weight_bytes));
  out->set_state_bytes(static_cast<uint64_t>(hello.state_bytes));
  out->set_staging_rows(static_cast<uint64_t>(hello.staging_rows));
  out->set_staging_layers(static_cast<uint64_t>(hello.staging_layers));
  out->set_session_number(static_cast<uint64_t>(hello.session_number));
  out->set_library_version(hello.library_version);
  for (const int32_t layer : hello.model_layers) {
    out->add_model_layers(static_cast<uint32_t>(layer));
  }
  out->set_reduce(hello.reduce == Reduce::kRoot ? v1::Hello::ROOT : v1::Hello::RANK);
  ToProto(hello.transport, out->mutable_transport());
  out->set_pipeline_parallel_size(static_cast<uint32_t>(hello.pipeline_parallel_size));
  out->set_expert_tensor_parallel(static_cast<uint32_t>(hello.expert_tensor_parallel));
  out->set_run_number(static_cast<uint64_t>(hello.run_number));
  out->set_take_over(hello.take_over);
  ToProto(hello.memory, out->mutable_memory());
  out->set_split(hello.split == SplitMode::kBatch ? v1::Hello::BATCH : v1::Hello::EQUAL);
}

// 0 is what a peer says that does not know the field.
absl::StatusOr<int32_t> GetSmallOrOne(const char* field, uint32_t value) {
  return value == 0 ? 1 : GetSmall(field, value);
}

absl::StatusOr<UpMessage> HelloFromProto(const v1::Hello& in) {
  Hello hello;
  EPLB_RETURN_IF_ERROR(CheckPlainName("job", in.job()));
  EPLB_RETURN_IF_ERROR(CheckPrintableName("run_id", in.run_id()));
  hello.job = in.job();
  hello.run_id = in.run_id();
  hello.nonce = in.nonce();
  EPLB_ASSIGN_OR_RETURN(hello.rank, GetSmall("rank", in.rank()));
  EPLB_ASSIGN_OR_RETURN(hello.world_size, GetSmall("world_size", in.world_size()));
  EPLB_ASSIGN_OR_RETURN(hello.gpu, GetSmall("gpu", in.gpu()));
  EPLB_ASSIGN_OR_RETURN(hello.ep_group, GetSmall("ep_group", in.ep_group()));
  EPLB_ASSIGN_OR_RETURN(hello.shape, ShapeFromProto(in.shape()));
  EPLB_ASSIGN_OR_RETURN(hello.running_version, GetCount("running_version", in.running_version()));
  EPLB_ASSIGN_OR_RETURN(hello.running_digest, GetDigest("running_digest", in.running_digest()));
  EPLB_ASSIGN_OR_RETURN(hello.prepared_version,
                        GetCount("prepared_version", in.prepared_version()));
  EPLB_ASSIGN_OR_RETURN(hello.highest_term, GetCount("highest_term", in.highest_term()));
  EPLB_ASSIGN_OR_RETURN(hello.highest_version, GetCount("highest_version", in.highest_version()));
  EPLB_ASSIGN_OR_RETURN(hello.step, GetCount("step", in.step()));
  EPLB_ASSIGN_OR_RETURN(hello.vote_every, GetSmall("vote_every", in.vote_every()));
  EPLB_ASSIGN_OR_RETURN(hello.report_every, GetSmall("report_every", in.report_every()));
  EPLB_ASSIGN_OR_RETURN(hello.weight_bytes, GetCount("weight_bytes", in.weight_bytes()));
  EPLB_ASSIGN_OR_RETURN(hello.state_bytes, GetCount("state_bytes", in.state_bytes()));
  EPLB_ASSIGN_OR_RETURN(hello.staging_rows, GetCount("staging_rows", in.staging_rows()));
  EPLB_ASSIGN_OR_RETURN(hello.staging_layers, GetCount("staging_layers", in.staging_layers()));
  EPLB_ASSIGN_OR_RETURN(hello.session_number, GetCount("session_number", in.session_number()));
  EPLB_ASSIGN_OR_RETURN(hello.pipeline_parallel_size,
                        GetSmallOrOne("pipeline_parallel_size", in.pipeline_parallel_size()));
  EPLB_ASSIGN_OR_RETURN(hello.expert_tensor_parallel,
                        GetSmallOrOne("expert_tensor_parallel", in.expert_tensor_parallel()));
  EPLB_ASSIGN_OR_RETURN(hello.run_number, GetCount("run_number", in.run_number()));
  hello.take_over = in.take_over();
  hello.memory = CarriedFromBytes(in.memory());
  hello.library_version = Clipped(in.library_version());
  EPLB_ASSIGN_OR_RETURN(hello.transport, FromProto(in.transport()));
  hello.model_layers.reserve(static_cast<size_t>(in.model_layers_size()));
  for (const uint32_t layer : in.model_layers()) {
    EPLB_ASSIGN_OR_RETURN(const int32_t number, GetSmall("model_layers", layer));
    hello.model_layers.push_back(number);
  }
  if (in.reduce() != v1::Hello::RANK && in.reduce() != v1::Hello::ROOT) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce is ", static_cast<int>(in.reduce()), ", expected RANK or ROOT"));
  }
  hello.reduce = in.reduce() == v1::Hello::ROOT ? Reduce::kRoot : Reduce::kRank;
  if (in.split() != v1::Hello::EQUAL && in.split() != v1::Hello::BATCH) {
    return absl::InvalidArgumentError(
        absl::StrCat("split is ", static_cast<int>(in.split()), ", expected EQUAL or BATCH"));
  }
  hello.split = in.split() == v1::Hello::BATCH ? SplitMode::kBatch : SplitMode::kEqual;
  return hello;
}

absl::StatusOr<UpMessage> PreparedFromProto(const v1::Prepared& in) {
  Prepared prepared;
  EPLB_ASSIGN_OR_RETURN(prepared.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(prepared.digest, GetDigest("digest", in.digest()));
  EPLB_ASSIGN_OR_RETURN(prepared.plan_hash, GetDigest("plan_hash", in.plan_hash()));
  return prepared;
}

absl::StatusOr<UpMessage> NackFromProto(const v1::Nack& in) {
  Nack nack;
  EPLB_ASSIGN_OR_RETURN(nack.version, GetCount("version", in.version()));
  if (!v1::Nack::Code_IsValid(in.code()) || in.code() == v1::Nack::CODE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("nack code ", static_cast<int>(in.code()), " is unknown"));
  }
  nack.code = static_cast<NackCode>(in.code());
  nack.detail = Clipped(in.detail());
  return nack;
}

absl::StatusOr<UpMessage> AppliedFromProto(const v1::Applied& in) {
  constexpr size_t kMaxTransportName = 64;  // bytes
  Applied applied;
  EPLB_ASSIGN_OR_RETURN(applied.version, GetCount("version", in.version()));
  EPLB_ASSIGN_OR_RETURN(applied.digest, GetDigest("digest", in.digest()));
  EPLB_ASSIGN_OR_RETURN(applied.step, GetCount("step", in.step()));
  EPLB_ASSIGN_OR_RETURN(applied.received_bytes, GetCount("received_bytes", in.received_bytes()));
  if (!(in.pause_seconds() >= 0 && in.pause_seconds() < 1e9)) {
    return absl::InvalidArgumentError(absl::StrCat("pause_seconds is ", in.pause_seconds()));
  }
  applied.pause_seconds = in.pause_seconds();
  applied.transport = Clipped(in.transport(), kMaxTransportName);
  applied.fallback_reason = Clipped(in.fallback_reason());
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
  failed.detail = Clipped(in.detail());
  EPLB_ASSIGN_OR_RETURN(failed.step, GetCount("step", in.step()));
  return failed;
}

absl::StatusOr<UpMessage> GoodbyeFromProto(const v1::Goodbye& in) {
  Goodbye goodbye{.reason = Clipped(in.reason()), .missing_ranks = {}, .failed = in.failed()};
  for (const uint32_t rank : in.missing_ranks()) {
    EPLB_ASSIGN_OR_RETURN(const int32_t missing, GetSmall("missing_ranks", rank));
    goodbye.missing_ranks.push_back(missing);
  }
  return goodbye;
}

}  // namespace

void ToProto(const UpMessage& message, v1::Up* out) {
  std::visit(
      Overloaded{[&](const Hello& m) { HelloToProto(m, out->mutable_hello()); },
                 [&](const LoadReport& m) { LoadReportToProto(m, out->mutable_load_report()); },
                 [&](const Prepared& m) {
                   v1::Prepared* ready = out->mutable_prepared();
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
                   applied->set_transport(m.transport);
                   applied->set_fallback_reason(m.fallback_reason);
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
                 },
                 [&](const Moved& m) {
                   out->mutable_moved()->set_term(static_cast<uint64_t>(m.term));
                   out->mutable_moved()->set_endpoint(m.endpoint);
                 }},
      message);
  ClipTexts(out, kMaxText);  // the daemon reads no more of each
}

absl::StatusOr<UpMessage> FromProto(v1::Up message) {
  switch (message.message_case()) {
    case v1::Up::kHello:
      return HelloFromProto(message.hello());
    case v1::Up::kLoadReport:
      return LoadReportFromProto(*message.mutable_load_report());
    case v1::Up::kPrepared:
      return PreparedFromProto(message.prepared());
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
    case v1::Up::kMoved: {
      EPLB_ASSIGN_OR_RETURN(const int64_t term, GetCount("term", message.moved().term()));
      return Moved{term, Clipped(message.moved().endpoint())};
    }
    case v1::Up::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

namespace {

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
  out->set_decided_first_step(static_cast<uint64_t>(propose.decided_first_step));
  out->set_decided_last_step(static_cast<uint64_t>(propose.decided_last_step));
  out->set_decision(static_cast<uint64_t>(propose.decision));
  out->set_asked_by(propose.asked_by);
  out->set_policy(propose.policy);
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
  propose.reason = Clipped(in.reason(), kMaxLongText);
  EPLB_ASSIGN_OR_RETURN(propose.decided_first_step,
                        GetCount("decided_first_step", in.decided_first_step()));
  EPLB_ASSIGN_OR_RETURN(propose.decided_last_step,
                        GetCount("decided_last_step", in.decided_last_step()));
  EPLB_ASSIGN_OR_RETURN(propose.decision, GetCount("decision", in.decision()));
  propose.asked_by = Clipped(in.asked_by());
  propose.policy = Clipped(in.policy());
  return propose;
}

absl::StatusOr<DownMessage> WelcomeFromProto(const v1::Welcome& in) {
  Welcome welcome;
  EPLB_ASSIGN_OR_RETURN(welcome.term, GetCount("term", in.term()));
  welcome.server_version = Clipped(in.server_version());
  welcome.waits = Clipped(in.waits(), kMaxLongText);
  EPLB_ASSIGN_OR_RETURN(welcome.election_term, GetCount("election_term", in.election_term()));
  return welcome;
}

absl::StatusOr<DownMessage> CancelFromProto(const v1::Cancel& in) {
  Cancel cancel;
  EPLB_ASSIGN_OR_RETURN(cancel.version, GetCount("version", in.version()));
  cancel.reason = Clipped(in.reason(), kMaxLongText);
  return cancel;
}

}  // namespace

void ToProto(const DownMessage& message, v1::Down* out) {
  std::visit(
      Overloaded{
          [&](const Welcome& m) {
            out->mutable_welcome()->set_term(static_cast<uint64_t>(m.term));
            out->mutable_welcome()->set_server_version(m.server_version);
            out->mutable_welcome()->set_waits(m.waits);
            out->mutable_welcome()->set_election_term(static_cast<uint64_t>(m.election_term));
          },
          [&](const Propose& m) { ProposeToProto(m, out->mutable_propose()); },
          [&](const Cancel& m) {
            out->mutable_cancel()->set_version(static_cast<uint64_t>(m.version));
            out->mutable_cancel()->set_reason(m.reason);
          },
          [&](const SetReportInterval& m) {
            out->mutable_set_report_interval()->set_report_every(
                static_cast<uint32_t>(m.report_every));
            out->mutable_set_report_interval()->set_from_step(static_cast<uint64_t>(m.from_step));
          },
          [&](const NeedPlacement& m) {
            SetDigest(m.digest, out->mutable_need_placement()->mutable_digest());
          },
          [&](const Drain& m) {
            out->mutable_drain()->set_grace_ms(static_cast<uint32_t>(m.grace_ms));
          },
          [&](const Keep& m) {
            out->mutable_keep()->set_run_number(static_cast<uint64_t>(m.run_number));
            ToProto(m.memory, out->mutable_keep()->mutable_memory());
          }},
      message);
  ClipTexts(out);
}

absl::StatusOr<DownMessage> FromProto(const v1::Down& message) {
  switch (message.message_case()) {
    case v1::Down::kWelcome:
      return WelcomeFromProto(message.welcome());
    case v1::Down::kPropose:
      return ProposeFromProto(message.propose());
    case v1::Down::kCancel:
      return CancelFromProto(message.cancel());
    case v1::Down::kSetReportInterval: {
      EPLB_ASSIGN_OR_RETURN(const int32_t every,
                            GetSmall("report_every", message.set_report_interval().report_every()));
      EPLB_ASSIGN_OR_RETURN(const int64_t from_step,
                            GetCount("from_step", message.set_report_interval().from_step()));
      return SetReportInterval{every, from_step};
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
    case v1::Down::kKeep: {
      EPLB_ASSIGN_OR_RETURN(const int64_t run_number,
                            GetCount("run_number", message.keep().run_number()));
      return Keep{run_number, CarriedFromBytes(message.keep().memory())};
    }
    case v1::Down::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

namespace {

template <class Cell>
std::string PackCounts(const LoadMatrix& counts) {
  std::string bytes(static_cast<size_t>(counts.size()) * sizeof(Cell), '\0');
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    const auto cell = static_cast<Cell>(counts.data()[i]);
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(Cell), &cell, sizeof(Cell));
  }
  return bytes;
}

// A report or a part of it, to the fields of the same names.
template <class Counted, class Message>
void SetCounts(const Counted& counted, Message* out) {
  if (!counted.packed.cells.empty()) {
    out->set_counts_u32(counted.packed.cells);
    return;
  }
  const bool fits = counted.counts.size() == 0 ||
                    counted.counts.maxCoeff() <= int64_t{std::numeric_limits<uint32_t>::max()};
  if (fits) {
    out->set_counts_u32(PackCounts<uint32_t>(counted.counts));
  } else {
    out->set_counts_u64(PackCounts<uint64_t>(counted.counts));
  }
}

struct CountShape {
  uint32_t num_layers = 0;
  uint32_t num_experts = 0;
};

absl::Status CheckCountBytes(const std::string& what, CountShape shape, std::string_view bytes,
                             size_t cell_bytes) {
  if (bytes.size() == size_t{shape.num_layers} * shape.num_experts * cell_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes.size(), " bytes of counts, expected ", shape.num_layers,
                   " layers x ", shape.num_experts, " experts x ", cell_bytes));
}

absl::Status UnpackCounts(std::string_view bytes, LoadMatrix* counts) {
  for (Eigen::Index i = 0; i < counts->size(); ++i) {
    uint64_t cell = 0;
    std::memcpy(&cell, bytes.data() + static_cast<size_t>(i) * sizeof(cell), sizeof(cell));
    EPLB_ASSIGN_OR_RETURN(counts->data()[i], GetCount("load report count", cell));
  }
  return absl::OkStatus();
}

// `what` names the message in an error.
template <class Message, class Counted>
absl::Status TakeCounts(const std::string& what, CountShape shape, Message& in, Counted* out) {
  if (in.counts_u32().empty() == in.counts_u64().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must set exactly one of counts_u32 and counts_u64"));
  }
  if (in.counts_u64().empty()) {
    EPLB_RETURN_IF_ERROR(CheckCountBytes(what, shape, in.counts_u32(), sizeof(uint32_t)));
    out->packed = {.num_layers = static_cast<int32_t>(shape.num_layers),
                   .num_experts = static_cast<int32_t>(shape.num_experts),
                   .cells = std::move(*in.mutable_counts_u32())};
    return absl::OkStatus();
  }
  // Checked before allocating, so that a short message cannot ask for much memory.
  EPLB_RETURN_IF_ERROR(CheckCountBytes(what, shape, in.counts_u64(), sizeof(uint64_t)));
  out->counts.resize(shape.num_layers, shape.num_experts);
  return UnpackCounts(in.counts_u64(), &out->counts);
}

absl::Status TakeParts(CountShape shape, v1::LoadReport& in, LoadReport* report) {
  if (in.earlier_size() > kMaxLoadParts) {
    return absl::InvalidArgumentError(absl::StrCat("load report has ", in.earlier_size(),
                                                   " earlier parts, expected 0..", kMaxLoadParts));
  }
  if (in.parts_unknown() && in.earlier_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load report has ", in.earlier_size(), " earlier parts and parts_unknown, expected none"));
  }
  report->parts_unknown = in.parts_unknown();
  report->earlier.resize(static_cast<size_t>(in.earlier_size()));
  for (int index = 0; index < in.earlier_size(); ++index) {
    v1::LoadReport::Part& from = *in.mutable_earlier(index);
    LoadPart& part = report->earlier[static_cast<size_t>(index)];
    EPLB_ASSIGN_OR_RETURN(part.last_step, GetCount("earlier.last_step", from.last_step()));
    EPLB_ASSIGN_OR_RETURN(part.version, GetCount("earlier.version", from.version()));
    EPLB_RETURN_IF_ERROR(
        TakeCounts(absl::StrCat("load report: earlier part ", index), shape, from, &part));
  }
  return absl::OkStatus();
}

absl::Status TakeSplit(const v1::LoadReport& in, LoadReport* report) {
  for (const auto& [name, from, to] :
       {std::tuple{"split_tokens", &in.split_tokens(), &report->split_tokens},
        std::tuple{"split_peaks", &in.split_peaks(), &report->split_peaks},
        std::tuple{"split_peaks_static", &in.split_peaks_static(), &report->split_peaks_static},
        std::tuple{"split_peaks_without_eplb", &in.split_peaks_without_eplb(),
                   &report->split_peaks_without_eplb}}) {
    const auto layers = static_cast<uint32_t>(from->size());
    if (layers != 0 && layers != in.num_layers()) {
      return absl::InvalidArgumentError(absl::StrCat("load report: ", name, " has ", layers,
                                                     " numbers, expected 0 or ", in.num_layers()));
    }
    to->reserve(layers);
    for (const uint64_t tokens : *from) {
      EPLB_ASSIGN_OR_RETURN(const int64_t number, GetCount(name, tokens));
      to->push_back(number);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void LoadReportToProto(const LoadReport& report, v1::LoadReport* out) {
  const bool packed = !report.packed.cells.empty();
  out->set_first_step(static_cast<uint64_t>(report.first_step));
  out->set_last_step(static_cast<uint64_t>(report.last_step));
  out->set_num_layers(
      static_cast<uint32_t>(packed ? report.packed.num_layers : report.counts.rows()));
  out->set_num_experts(
      static_cast<uint32_t>(packed ? report.packed.num_experts : report.counts.cols()));
  SetCounts(report, out);
  out->set_dropped_steps(static_cast<uint64_t>(report.dropped_steps));
  out->set_version(static_cast<uint64_t>(report.version));
  for (const LoadPart& part : report.earlier) {
    v1::LoadReport::Part* to = out->add_earlier();
    to->set_last_step(static_cast<uint64_t>(part.last_step));
    to->set_version(static_cast<uint64_t>(part.version));
    SetCounts(part, to);
  }
  out->set_parts_unknown(report.parts_unknown);
  out->set_step_seconds(report.step_seconds);
  out->mutable_split_tokens()->Assign(report.split_tokens.begin(), report.split_tokens.end());
  out->mutable_split_peaks()->Assign(report.split_peaks.begin(), report.split_peaks.end());
  out->mutable_split_peaks_static()->Assign(report.split_peaks_static.begin(),
                                            report.split_peaks_static.end());
  out->mutable_split_peaks_without_eplb()->Assign(report.split_peaks_without_eplb.begin(),
                                                  report.split_peaks_without_eplb.end());
}

absl::StatusOr<UpMessage> LoadReportFromProto(v1::LoadReport& in) {
  constexpr auto kMaxCells = static_cast<uint64_t>(kMaxSlotsOfAllLayers);
  LoadReport report;
  EPLB_ASSIGN_OR_RETURN(report.first_step, GetCount("first_step", in.first_step()));
  EPLB_ASSIGN_OR_RETURN(report.last_step, GetCount("last_step", in.last_step()));
  EPLB_ASSIGN_OR_RETURN(report.dropped_steps, GetCount("dropped_steps", in.dropped_steps()));
  EPLB_ASSIGN_OR_RETURN(report.version, GetCount("version", in.version()));
  report.step_seconds = in.step_seconds();
  if (!(report.step_seconds >= 0 && report.step_seconds <= kMaxStepSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load report: step_seconds is ", report.step_seconds, ", expected 0..", kMaxStepSeconds));
  }
  if (report.last_step < report.first_step) {
    return absl::InvalidArgumentError(absl::StrCat("load report covers steps ", report.first_step,
                                                   "..", report.last_step,
                                                   ", the last is below the first"));
  }
  const CountShape shape{in.num_layers(), in.num_experts()};
  if (shape.num_layers == 0 || shape.num_experts == 0 ||
      uint64_t{shape.num_layers} * shape.num_experts > kMaxCells) {
    return absl::InvalidArgumentError(absl::StrCat("load report is ", shape.num_layers,
                                                   " layers x ", shape.num_experts,
                                                   " experts, expected 1..", kMaxCells, " cells"));
  }
  EPLB_RETURN_IF_ERROR(TakeCounts("load report", shape, in, &report));
  EPLB_RETURN_IF_ERROR(TakeParts(shape, in, &report));
  EPLB_RETURN_IF_ERROR(TakeSplit(in, &report));
  return report;
}

}  // namespace eplb::wire
