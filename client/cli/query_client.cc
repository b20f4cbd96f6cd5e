#include "client/cli/query_client.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "client/cli/context.h"
#include "client/cli/flags.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/convert.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext) {
  const std::string cannot = absl::StrCat("cannot reach ", endpoint, ": ");
  if (absl::StrContains(message, "http1.x")) {
    return Unavailable(cannot,
                       "an HTTP/1 server answers; is that eplbd's --http address? eplbctl needs "
                       "its gRPC address, by default port 29610");
  }
  const std::string cause = wire::ConnectionCause(message);
  if (cause == "permission denied") {
    return PermissionDenied(cannot + "this user may not open the socket");
  }
  // gRPC reports only a closed connection if the daemon wants TLS.
  const bool perhaps_tls = plaintext && absl::EndsWith(message, "closed");
  return Unavailable(
      cannot, cause,
      perhaps_tls ? "; does it want TLS? see --tls-ca, --tls-cert and --tls-key" : "");
}

namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // a placement of 128 layers x 2048 slots is 1 MB

// The connection of a failed call.
struct Connection {
  std::string endpoint;
  absl::Duration timeout;
  bool connected = false;  // the connection was established and stays
  bool plaintext = false;
};

absl::Status TooLate(const Connection& connection) {
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(connection.timeout));
  if (!connection.connected) {
    return Unavailable("cannot reach ", connection.endpoint, ": no connection", within);
  }
  return DeadlineExceeded("no answer from ", connection.endpoint, within);
}

// True for a code that any server at the address may answer; other codes are about the question.
bool AboutTheServer(absl::StatusCode code) {
  return code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kResourceExhausted;
}

// Returns the meaning of a failed call, in one line.
absl::Status Meaning(const grpc::Status& status, const Connection& connection) {
  absl::Status answer = wire::FromGrpc(status);
  if (absl::IsDeadlineExceeded(answer)) return TooLate(connection);
  if (absl::IsUnavailable(answer) && !connection.connected) {
    return ConnectionError(connection.endpoint, status.error_message(), connection.plaintext);
  }
  // The daemon's own error, e.g. that its store is full, arrives over a connection that stays.
  const absl::StatusCode code =
      absl::IsUnavailable(answer) ? absl::StatusCode::kUnknown : answer.code();
  if (answer.message().empty()) {
    return {code, absl::StrCat(connection.endpoint, " answers ",
                               absl::StatusCodeToString(answer.code()), " and no message")};
  }
  if (!AboutTheServer(answer.code())) return answer;
  return {code, absl::StrCat(connection.endpoint, ": ", answer.message())};
}

// True if the channel connects before the deadline; false as soon as the first attempt fails.
bool Connects(grpc::Channel& channel, absl::Duration timeout) {
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
  grpc_connectivity_state state = channel.GetState(true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    if (!channel.WaitForStateChange(state, deadline)) return false;
    state = channel.GetState(true);
  }
  return state == GRPC_CHANNEL_READY;
}

using google::protobuf::Message;

// A call of v1.Query or v1.Admin.
struct Question {
  const Message& request;
  Message* response;
  std::string path = {};  // "/eplb.v1.Query/GetJob"
  bool changes = false;   // the job or its settings
};

// The file of a request declares one service, which has the request's call.
Question MakeQuestion(const Message& request, Message* response) {
  const auto& service = *request.GetDescriptor()->file()->service(0);
  int call = 0;
  while (service.method(call)->input_type() != request.GetDescriptor()) ++call;
  return {request, response,
          absl::StrCat("/", service.full_name(), "/", service.method(call)->name()),
          service.name() == "Admin"};
}

// Calls as generated code does, which knows the types.
grpc::Status Send(const Question& question, const std::shared_ptr<grpc::Channel>& channel,
                  grpc::ClientContext* context) {
  const grpc::internal::RpcMethod call(question.path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
                                       channel);
  return grpc::internal::BlockingUnaryCall<Message, Message>(channel.get(), call, context,
                                                             question.request, question.response);
}

struct Reply {
  absl::Status status;
  bool reached = false;  // the daemon may have taken the question, whatever the status is
};

// Asks one daemon over a channel of its own.
Reply AskOne(const std::string& endpoint, const wire::TlsFiles& tls, absl::Duration timeout,
             const Question& question) {
  const absl::Time deadline = absl::Now() + timeout;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the daemon is inside the cluster
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials =
      wire::MakeChannelCredentials(tls, &arguments);
  if (!credentials.ok()) return {credentials.status()};
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(endpoint, *credentials, arguments);
  const bool reached = Connects(*channel, timeout);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const grpc::Status status = Send(question, channel, &context);
  if (status.ok()) {
    wire::ClipTexts(question.response);  // a daemon of another version may send anything
    return {absl::OkStatus(), true};
  }
  absl::Status standby = wire::FromGrpc(status, context);
  if (wire::LeaderIn(standby)) return {standby, true};
  const bool connected = channel->GetState(false) == GRPC_CHANNEL_READY;
  return {Meaning(status, {.endpoint = endpoint,
                           .timeout = timeout,
                           .connected = connected,
                           .plaintext = !tls.enabled()}),
          reached || connected};
}

// Which daemon is asked next: a standby's leader before the others of the list, each once.
class Candidates {
 public:
  explicit Candidates(std::vector<std::string> endpoints) : waiting_(std::move(endpoints)) {}
  bool empty() const { return waiting_.empty(); }
  std::string Take() {
    std::string next = waiting_.front();
    waiting_.erase(waiting_.begin());
    asked_.push_back(next);
    return next;
  }
  void Prefer(const std::string& leader) {
    if (leader.empty() || std::ranges::find(asked_, leader) != asked_.end()) return;
    std::erase(waiting_, leader);
    waiting_.insert(waiting_.begin(), leader);
  }

 private:
  std::vector<std::string> waiting_;
  std::vector<std::string> asked_;
};

// The deadline and the daemons of a question.
struct Asked {
  absl::Duration timeout;
  wire::TlsFiles tls;
  std::vector<std::string> endpoints;
};

absl::StatusOr<Asked> ResolveOptions(const QueryOptions& options) {
  Asked asked;
  EPLB_ASSIGN_OR_RETURN(asked.timeout, ParseDuration("--timeout", options.timeout));
  EPLB_ASSIGN_OR_RETURN(const DaemonAddress daemon,
                        ResolveDaemon(options.endpoint, options.tls, options.context));
  asked.tls = daemon.tls;
  EPLB_ASSIGN_OR_RETURN(asked.endpoints, wire::SplitEndpoints(daemon.endpoint));
  return asked;
}

// Asks the daemons of the list until one answers that is no standby. If all that answer are
// standbys, no daemon leads yet, and the list is asked again. A change is sent to no further daemon
// once one may have taken it: another daemon with a store of its own would make it a second time.
absl::Status AskLeader(const QueryOptions& options, const Question& question) {
  constexpr absl::Duration kBetweenRounds = absl::Milliseconds(300);
  EPLB_ASSIGN_OR_RETURN(const Asked asked, ResolveOptions(options));
  const absl::Time deadline = absl::Now() + asked.timeout;
  absl::Duration left = asked.timeout;
  while (true) {
    absl::Status first;    // status of the first daemon, unless one is a standby
    absl::Status standby;  // OK: no daemon is a standby
    for (Candidates candidates(asked.endpoints); !candidates.empty();) {
      const std::string endpoint = candidates.Take();
      // A daemon whose host is gone must leave time for the others.
      const absl::Duration share = candidates.empty() ? left : left / 2;
      auto [status, reached] = AskOne(endpoint, asked.tls, share, question);
      const std::optional<std::string> leader = wire::LeaderIn(status);
      const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      if (!leader && (!silent || (question.changes && reached))) return status;
      if (leader) {
        candidates.Prefer(*leader);
        standby = Unavailable(endpoint, ": ", status.message());
        standby.SetPayload(wire::kLeaderKey,
                           absl::Cord(leader->empty() ? wire::kNoLeader : *leader));
      }
      if (first.ok()) first = std::move(status);
      left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    }
    if (standby.ok()) return first;
    if (left < kBetweenRounds) return standby;
    absl::SleepFor(kBetweenRounds);
  }
}

// Absent for no loads, and for numbers that cannot be rows of GPUs; the counts alone suffice.
std::optional<RealMatrix> GpuLoadsOf(const v1::GetLoadResponse& response) {
  const auto layers = static_cast<Eigen::Index>(response.num_layers());
  const auto cells = static_cast<Eigen::Index>(response.gpu_loads_size());
  if (cells == 0 || layers == 0 || cells % layers != 0) return std::nullopt;
  const RealMatrix loads =
      Eigen::Map<const RealMatrix>(response.gpu_loads().data(), layers, cells / layers);
  if (!loads.isFinite().all() || loads.minCoeff() < 0) return std::nullopt;
  return loads;
}

}  // namespace

absl::Status Ask(const QueryOptions& options, const Message& request, Message* response) {
  return AskLeader(options, MakeQuestion(request, response));
}

absl::StatusOr<std::vector<EndpointAnswer>> AskEndpoints(const QueryOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const Asked asked, ResolveOptions(options));
  const v1::GetStatusRequest request;
  v1::GetStatusResponse response;
  const Question question = MakeQuestion(request, &response);
  const absl::Duration share = asked.timeout / static_cast<double>(asked.endpoints.size());
  std::vector<EndpointAnswer> answers;
  for (const std::string& endpoint : asked.endpoints) {
    const absl::Status status = AskOne(endpoint, asked.tls, share, question).status;
    answers.push_back({endpoint, status, wire::LeaderIn(status), wire::TroubleIn(status)});
  }
  return answers;
}

absl::StatusOr<wire::PlacementBody> AskPlacement(const QueryOptions& options,
                                                 const std::string& job, int64_t version) {
  v1::GetPlacementRequest request;
  if (version >= 0) request.set_version(static_cast<uint64_t>(version));
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options, job, request, &response).status());
  absl::StatusOr<wire::PlacementBody> body = wire::FromProto(response.placement());
  if (body.ok()) return body;
  return Internal("the daemon's answer is no placement: ", body.status().message());
}

absl::StatusOr<AskedLoad> AskLoad(const QueryOptions& options, const std::string& job) {
  v1::GetLoadResponse response;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options, job, v1::GetLoadRequest(), &response).status());
  // The same cells as a report's, checked by the same code.
  v1::Up up;
  v1::LoadReport& report = *up.mutable_load_report();
  report.set_first_step(response.first_step());
  report.set_last_step(response.last_step());
  report.set_num_layers(response.num_layers());
  report.set_num_experts(response.num_experts());
  report.set_counts_u64(response.counts_u64());
  absl::StatusOr<wire::UpMessage> message = wire::FromProto(up);
  if (message.ok()) {
    auto& counts = std::get<wire::LoadReport>(*message);
    absl::StatusOr<Load> load = Load::FromCounts(std::move(counts.counts));
    if (load.ok()) {
      return AskedLoad{.window = {counts.first_step, counts.last_step, *std::move(load)},
                       .gpu_loads = GpuLoadsOf(response),
                       .versions = {response.versions().begin(), response.versions().end()}};
    }
    message = load.status();
  }
  return Internal("the daemon's answer is no load: ", message.status().message());
}

absl::StatusOr<std::string> ChooseJob(const QueryOptions& options, const std::string& job) {
  if (!job.empty()) return job;
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(Ask(options, v1::GetStatusRequest(), &response));
  if (response.jobs_size() == 1) return response.jobs(0).job();
  if (response.jobs().empty()) {
    return NotFound(response.jobs_hidden() ? kNoVisibleJob : "the daemon has no job yet");
  }
  constexpr int kMostNamed = 8;
  std::string names;
  for (int i = 0; i < std::min(response.jobs_size(), kMostNamed); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", Printable(response.jobs(i).job()));
  }
  if (response.jobs_size() > kMostNamed) absl::StrAppend(&names, ", ..");
  return InvalidInput("--job is needed: the daemon has ", names);
}

}  // namespace eplb::cli
