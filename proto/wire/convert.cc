// Messages of the stream between a rank and the daemon, each by one list of its fields.
#include "proto/wire/convert.h"

#include "absl/strings/str_cat.h"
#include <google/protobuf/unknown_field_set.h>

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/fields.h"
#include "proto/wire/names.h"

namespace eplb::wire {

// Numbers of enumerations are equal in the messages and in the values.
static_assert(static_cast<int>(NackCode::kStaleTerm) == v1::Nack::STALE_TERM);
static_assert(static_cast<int>(NackCode::kBusy) == v1::Nack::Code_MAX);
static_assert(static_cast<int>(FailedCode::kCancelled) == v1::Failed::CANCELLED);
static_assert(static_cast<int>(FailedCode::kSuperseded) == v1::Failed::Code_MAX);
static_assert(static_cast<int>(Reduce::kRoot) == v1::Hello::ROOT);
static_assert(static_cast<int>(SplitMode::kBatch) == v1::Hello::BATCH);

constexpr size_t kMaxTransportName = 64;  // bytes

template <>
inline constexpr auto kFields<Hello> =
    std::tuple{Field{"job", &Hello::job},
               Field{"run_id", &Hello::run_id},
               Field{"nonce", &Hello::nonce},
               Field{"rank", &Hello::rank},
               Field{"world_size", &Hello::world_size},
               Field{"gpu", &Hello::gpu},
               Field{"ep_group", &Hello::ep_group},
               Field{"running_version", &Hello::running_version},
               Field{"running_digest", &Hello::running_digest},
               Field{"prepared_version", &Hello::prepared_version},
               Field{"highest_term", &Hello::highest_term},
               Field{"highest_version", &Hello::highest_version},
               Field{"step", &Hello::step},
               Field{"vote_every", &Hello::vote_every},
               Field{"report_every", &Hello::report_every},
               Field{"weight_bytes", &Hello::weight_bytes},
               Field{"state_bytes", &Hello::state_bytes},
               Field{"staging_rows", &Hello::staging_rows},
               Field{"staging_layers", &Hello::staging_layers},
               Field{"session_number", &Hello::session_number},
               Field{"library_version", &Hello::library_version},
               Field{"model_layers", &Hello::model_layers},
               Field{"reduce", &Hello::reduce},
               Field{"pipeline_parallel_size", &Hello::pipeline_parallel_size},
               Field{"expert_tensor_parallel", &Hello::expert_tensor_parallel},
               Field{"run_number", &Hello::run_number},
               Field{"take_over", &Hello::take_over},
               Field{"split", &Hello::split}};

template <>
inline constexpr auto kFields<Prepared> =
    std::tuple{Field{"version", &Prepared::version}, Field{"digest", &Prepared::digest},
               Field{"plan_hash", &Prepared::plan_hash}};

template <>
inline constexpr auto kFields<Nack> = std::tuple{
    Field{"version", &Nack::version}, Field{"code", &Nack::code}, Field{"detail", &Nack::detail}};

template <>
inline constexpr auto kFields<Applied> =
    std::tuple{Field{"version", &Applied::version},
               Field{"digest", &Applied::digest},
               Field{"step", &Applied::step},
               Field{"received_bytes", &Applied::received_bytes},
               Field{"pause_seconds", &Applied::pause_seconds},
               Field{"transport", &Applied::transport, kMaxTransportName},
               Field{"fallback_reason", &Applied::fallback_reason}};

template <>
inline constexpr auto kFields<Failed> =
    std::tuple{Field{"version", &Failed::version}, Field{"code", &Failed::code},
               Field{"detail", &Failed::detail}, Field{"step", &Failed::step}};

template <>
inline constexpr auto kFields<Goodbye> =
    std::tuple{Field{"reason", &Goodbye::reason}, Field{"missing_ranks", &Goodbye::missing_ranks},
               Field{"failed", &Goodbye::failed}};

template <>
inline constexpr auto kFields<Moved> =
    std::tuple{Field{"term", &Moved::term}, Field{"endpoint", &Moved::endpoint}};

template <>
inline constexpr auto kFields<Welcome> = std::tuple{
    Field{"term", &Welcome::term}, Field{"server_version", &Welcome::server_version},
    Field{"waits", &Welcome::waits, kMaxLongText}, Field{"election_term", &Welcome::election_term}};

template <>
inline constexpr auto kFields<Propose> =
    std::tuple{Field{"term", &Propose::term},
               Field{"version", &Propose::version},
               Field{"base_version", &Propose::base_version},
               Field{"base_digest", &Propose::base_digest},
               Field{"digest", &Propose::digest},
               Field{"chunk", &Propose::chunk},
               Field{"num_chunks", &Propose::num_chunks},
               Field{"reason", &Propose::reason, kMaxLongText},
               Field{"decided_first_step", &Propose::decided_first_step},
               Field{"decided_last_step", &Propose::decided_last_step},
               Field{"decision", &Propose::decision},
               Field{"asked_by", &Propose::asked_by},
               Field{"policy", &Propose::policy}};

template <>
inline constexpr auto kFields<Cancel> =
    std::tuple{Field{"version", &Cancel::version}, Field{"reason", &Cancel::reason, kMaxLongText}};

template <>
inline constexpr auto kFields<SetReportInterval> =
    std::tuple{Field{"report_every", &SetReportInterval::report_every},
               Field{"from_step", &SetReportInterval::from_step}};

template <>
inline constexpr auto kFields<NeedPlacement> = std::tuple{Field{"digest", &NeedPlacement::digest}};

template <>
inline constexpr auto kFields<Drain> = std::tuple{Field{"grace_ms", &Drain::grace_ms}};

template <>
inline constexpr auto kFields<Keep> = std::tuple{Field{"run_number", &Keep::run_number}};

namespace {

// One visitor per alternative of a variant.
template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

void HelloToProto(const Hello& hello, v1::Hello* out) {
  WriteFields(hello, out);
  ToProto(hello.shape, out->mutable_shape());
  ToProto(hello.transport, out->mutable_transport());
  ToProto(hello.memory, out->mutable_memory());
}

absl::StatusOr<Hello> HelloFromProto(const v1::Hello& in) {
  EPLB_RETURN_IF_ERROR(CheckPlainName("job", in.job()));
  EPLB_RETURN_IF_ERROR(CheckPrintableName("run_id", in.run_id()));
  Hello hello;
  EPLB_RETURN_IF_ERROR(ReadFields(in, &hello));
  EPLB_ASSIGN_OR_RETURN(hello.shape, ShapeFromProto(in.shape()));
  EPLB_ASSIGN_OR_RETURN(hello.transport, FromProto(in.transport()));
  hello.memory = CarriedFromBytes(in.memory());
  // A peer that does not have these fields sends 0.
  if (hello.pipeline_parallel_size == 0) hello.pipeline_parallel_size = 1;
  if (hello.expert_tensor_parallel == 0) hello.expert_tensor_parallel = 1;
  return hello;
}

template <class Message>
absl::StatusOr<Message> Read(const google::protobuf::Message& in) {
  Message message;
  EPLB_RETURN_IF_ERROR(ReadFields(in, &message));
  return message;
}

absl::StatusOr<Applied> AppliedFromProto(const v1::Applied& in) {
  EPLB_ASSIGN_OR_RETURN(Applied applied, Read<Applied>(in));
  if (applied.pause_seconds >= 0 && applied.pause_seconds < 1e9) return applied;
  return InvalidInput("pause_seconds is ", applied.pause_seconds);
}

absl::StatusOr<Propose> ProposeFromProto(const v1::Propose& in) {
  EPLB_ASSIGN_OR_RETURN(Propose propose, Read<Propose>(in));
  for (const v1::LayerPlacement& layer : in.layers()) propose.layers.push_back(FromProto(layer));
  return propose;
}

// Error for a message in which no known kind is set. Unimplemented, naming the field's number, for
// a kind of a later version, which the reader skips. InvalidArgument for an empty message.
absl::Status NoKnownKind(const google::protobuf::Message& message) {
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return InvalidInput("the stream message is empty");
  return absl::UnimplementedError(absl::StrCat("the stream message is of the unknown kind ",
                                               unknown.field(0).number(), ", of a later version"));
}

}  // namespace

void ToProto(const UpMessage& message, v1::Up* out) {
  std::visit(Overloaded{[&](const Hello& m) { HelloToProto(m, out->mutable_hello()); },
                        [&](const LoadReport& m) { ToProto(m, out->mutable_load_report()); },
                        [&](const Prepared& m) { WriteFields(m, out->mutable_prepared()); },
                        [&](const Nack& m) { WriteFields(m, out->mutable_nack()); },
                        [&](const Applied& m) { WriteFields(m, out->mutable_applied()); },
                        [&](const Failed& m) { WriteFields(m, out->mutable_failed()); },
                        [&](const PlacementBody& m) {
                          ToProto(m.placement, m.version,
                                  out->mutable_placement_body()->mutable_placement());
                        },
                        [&](const Goodbye& m) { WriteFields(m, out->mutable_goodbye()); },
                        [&](const Moved& m) { WriteFields(m, out->mutable_moved()); }},
             message);
}

absl::StatusOr<UpMessage> FromProto(v1::Up message) {
  switch (message.message_case()) {
    case v1::Up::kHello:
      return HelloFromProto(message.hello());
    case v1::Up::kLoadReport:
      return FromProto(*message.mutable_load_report());
    case v1::Up::kPrepared:
      return Read<Prepared>(message.prepared());
    case v1::Up::kNack:
      return Read<Nack>(message.nack());
    case v1::Up::kApplied:
      return AppliedFromProto(message.applied());
    case v1::Up::kFailed:
      return Read<Failed>(message.failed());
    case v1::Up::kPlacementBody:
      return FromProto(message.placement_body().placement());
    case v1::Up::kGoodbye:
      return Read<Goodbye>(message.goodbye());
    case v1::Up::kMoved:
      return Read<Moved>(message.moved());
    case v1::Up::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

void ToProto(const DownMessage& message, v1::Down* out) {
  std::visit(
      Overloaded{
          [&](const Welcome& m) { WriteFields(m, out->mutable_welcome()); },
          [&](const Propose& m) {
            WriteFields(m, out->mutable_propose());
            for (const LayerPlacement& layer : m.layers) {
              ToProto(layer, out->mutable_propose()->add_layers());
            }
          },
          [&](const Cancel& m) { WriteFields(m, out->mutable_cancel()); },
          [&](const SetReportInterval& m) { WriteFields(m, out->mutable_set_report_interval()); },
          [&](const NeedPlacement& m) { WriteFields(m, out->mutable_need_placement()); },
          [&](const Drain& m) { WriteFields(m, out->mutable_drain()); },
          [&](const Keep& m) {
            WriteFields(m, out->mutable_keep());
            ToProto(m.memory, out->mutable_keep()->mutable_memory());
          }},
      message);
}

absl::StatusOr<DownMessage> FromProto(const v1::Down& message) {
  switch (message.message_case()) {
    case v1::Down::kWelcome:
      return Read<Welcome>(message.welcome());
    case v1::Down::kPropose:
      return ProposeFromProto(message.propose());
    case v1::Down::kCancel:
      return Read<Cancel>(message.cancel());
    case v1::Down::kSetReportInterval:
      return Read<SetReportInterval>(message.set_report_interval());
    case v1::Down::kNeedPlacement:
      return Read<NeedPlacement>(message.need_placement());
    case v1::Down::kDrain:
      return Read<Drain>(message.drain());
    case v1::Down::kKeep: {
      EPLB_ASSIGN_OR_RETURN(Keep keep, Read<Keep>(message.keep()));
      keep.memory = CarriedFromBytes(message.keep().memory());
      return keep;
    }
    case v1::Down::MESSAGE_NOT_SET:
      break;
  }
  return NoKnownKind(message);
}

}  // namespace eplb::wire
