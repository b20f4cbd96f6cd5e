#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/clipped.h"
#include "proto/wire/convert.h"
#include "proto/wire/convert_load.h"
#include "proto/wire/fields.h"
#include "proto/wire/names.h"

namespace eplb::wire {
namespace {

static_assert(static_cast<int>(NackCode::kStaleTerm) == v1::Nack::STALE_TERM);
static_assert(static_cast<int>(NackCode::kBusy) == v1::Nack::Code_MAX);
static_assert(static_cast<int>(FailedCode::kRetracted) == v1::Failed::RETRACTED);
static_assert(static_cast<int>(FailedCode::kSuperseded) == v1::Failed::Code_MAX);

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
  out->set_staging_layers(static_cast<uint64_t>(hello.staging_layers));
  out->set_session_number(static_cast<uint64_t>(hello.session_number));
  out->set_library_version(hello.library_version);
  for (const int32_t layer : hello.model_layers) {
    out->add_model_layers(static_cast<uint32_t>(layer));
  }
  out->set_reduce(hello.reduce == Reduce::kRoot ? v1::Hello::ROOT : v1::Hello::RANK);
  ToProto(hello.transport, out->mutable_transport());
  out->set_num_pipeline_ranks(static_cast<uint32_t>(hello.num_pipeline_ranks));
  out->set_expert_tensor_parallel(static_cast<uint32_t>(hello.expert_tensor_parallel));
  out->set_launch(static_cast<uint64_t>(hello.launch));
  out->set_take_over(hello.take_over);
  ToProto(hello.memory, out->mutable_memory());
}

// 0 is what a peer says that does not know the field.
absl::StatusOr<int32_t> GetSmallOrOne(const char* field, uint32_t value) {
  return value == 0 ? 1 : GetSmall(field, value);
}

absl::StatusOr<UpMessage> HelloFromProto(const v1::Hello& in) {
  Hello hello;
  EPLB_RETURN_IF_ERROR(CheckPlainName("job", in.job()));
  EPLB_RETURN_IF_ERROR(CheckPrintableName("incarnation", in.incarnation()));
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
  EPLB_ASSIGN_OR_RETURN(hello.staging_layers, GetCount("staging_layers", in.staging_layers()));
  EPLB_ASSIGN_OR_RETURN(hello.session_number, GetCount("session_number", in.session_number()));
  EPLB_ASSIGN_OR_RETURN(hello.num_pipeline_ranks,
                        GetSmallOrOne("num_pipeline_ranks", in.num_pipeline_ranks()));
  EPLB_ASSIGN_OR_RETURN(hello.expert_tensor_parallel,
                        GetSmallOrOne("expert_tensor_parallel", in.expert_tensor_parallel()));
  EPLB_ASSIGN_OR_RETURN(hello.launch, GetCount("launch", in.launch()));
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
  return hello;
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
  applied.passed_over = Clipped(in.passed_over());
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
                   applied->set_transport(m.transport);
                   applied->set_passed_over(m.passed_over);
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
}

absl::StatusOr<UpMessage> FromProto(v1::Up message) {
  switch (message.message_case()) {
    case v1::Up::kHello:
      return HelloFromProto(message.hello());
    case v1::Up::kLoadReport:
      return LoadReportFromProto(*message.mutable_load_report());
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
    case v1::Up::kMoved: {
      EPLB_ASSIGN_OR_RETURN(const int64_t term, GetCount("term", message.moved().term()));
      return Moved{term, Clipped(message.moved().endpoint())};
    }
    case v1::Up::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

}  // namespace eplb::wire
