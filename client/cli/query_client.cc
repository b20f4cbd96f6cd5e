#include "client/cli/query_client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include "base/files.h"
#include "base/invalid_input.h"
#include "base/status_macros.h"
#include "client/cli/context.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/convert.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/status.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/query.grpc.pb.h"

namespace eplb::cli {

absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext) {
  const std::string cannot = absl::StrCat("cannot reach ", endpoint, ": ");
  if (absl::StrContains(message, "http1.x")) {
    return absl::UnavailableError(absl::StrCat(
        cannot,
        "an HTTP/1 server answers; is that eplbd's --http address? eplbctl needs its gRPC "
        "address, by default port 29610"));
  }
  const std::string cause = wire::ConnectionCause(message);
  if (cause == "permission denied") {
    return absl::PermissionDeniedError(cannot + "this user may not open the socket");
  }
  // All that gRPC says of a daemon that wants TLS is that it hung up.
  const bool perhaps_tls = plaintext && absl::EndsWith(message, "closed");
  return absl::UnavailableError(absl::StrCat(
      cannot, cause,
      perhaps_tls ? "; does it want TLS? see --tls-ca, --tls-cert and --tls-key" : ""));
}

namespace {

constexpr char kDefaultEndpoint[] = "127.0.0.1:29610";
constexpr char kServiceSocket[] = "/run/eplb/eplbd.sock";

std::string EnvironmentText(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& endpoint) {
  const absl::StatusOr<std::vector<std::string>> checked = wire::SplitEndpoints(endpoint);
  if (!checked.ok()) return InFile(source, checked.status());
  return absl::StrJoin(*checked, ",");
}

wire::TlsFiles FilledFrom(const wire::TlsFiles& more, wire::TlsFiles files) {
  if (files.ca.empty()) files.ca = more.ca;
  if (files.cert.empty()) files.cert = more.cert;
  if (files.key.empty()) files.key = more.key;
  if (files.server_name.empty()) files.server_name = more.server_name;
  return files;
}

// A daemon that was killed leaves its socket behind: one that nobody serves does not count. One
// that this user may not use does, so that the error names it.
bool IsServed(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return false;
  path.copy(address.sun_path, path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool reached =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool served = reached || errno == EAGAIN || errno == EACCES;
  (void)close(probe);
  return served;
}

absl::StatusOr<std::string> WithoutConfig() {
  std::vector<std::string> sockets = {kServiceSocket};
  const std::string runtime = EnvironmentText("XDG_RUNTIME_DIR");
  if (!runtime.empty()) sockets.push_back(runtime + "/eplb/eplbd.sock");
  for (const std::string& socket : sockets) {
    if (IsServed(socket)) return absl::StrCat("unix:", socket);
  }
  return kDefaultEndpoint;
}

// Of the configuration file: the context that is named, by flag, EPLB_CONTEXT or the file, else
// what it has without one. A daemon that is `given` otherwise needs no context.
absl::StatusOr<DaemonAddress> AddressInForce(const std::string& path, const std::string& context,
                                             bool given) {
  EPLB_ASSIGN_OR_RETURN(const CtlConfig config, ReadCtlConfig(path));
  std::string name = context.empty() ? EnvironmentText("EPLB_CONTEXT") : context;
  if (name.empty()) name = config.in_force;
  if (name.empty() || given) return config.address;
  EPLB_ASSIGN_OR_RETURN(Context found, FindContext(config, name));
  return std::move(found.address);
}

// tls: what the flags give, for a socket that was found and not named.
absl::Status CheckNoTlsFlags(const wire::TlsFiles& tls, const std::string& socket) {
  const std::pair<const char*, const std::string*> flags[] = {
      {"--tls-ca", &tls.ca},
      {"--tls-cert", &tls.cert},
      {"--tls-key", &tls.key},
      {"--tls-server-name", &tls.server_name}};
  for (const auto& [flag, value] : flags) {
    if (value->empty()) continue;
    return InvalidInput(flag, " needs --endpoint: without one the daemon is at ", socket,
                        ", which has no TLS");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context) {
  const std::string path = CtlConfigPath();
  const std::string variable = EnvironmentText("EPLB_ENDPOINT");
  const bool given = !endpoint.empty() || (!variable.empty() && context.empty());
  absl::StatusOr<DaemonAddress> config = AddressInForce(path, context, given);
  // Who names a daemon is not held up by a broken file.
  if (!config.ok() && given) config = DaemonAddress();
  EPLB_RETURN_IF_ERROR(config.status());
  DaemonAddress address = {.endpoint = {}, .tls = wire::WithEnvironment(tls)};
  // A context that was named brings its own identity; flags alone are above it.
  if (!context.empty() && !given) {
    address.tls = FilledFrom(address.tls, FilledFrom(config->tls, tls));
  } else if (!given || config->endpoint.empty()) {
    address.tls = FilledFrom(config->tls, address.tls);
  }
  if (!endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("--endpoint", endpoint));
  } else if (given) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("EPLB_ENDPOINT", variable));
  } else if (!config->endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked(path, config->endpoint));
  } else {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, WithoutConfig());
    // The sockets that a daemon opens by itself have no TLS: the kernel names the peer.
    if (absl::StartsWith(address.endpoint, "unix:")) {
      EPLB_RETURN_IF_ERROR(CheckNoTlsFlags(tls, address.endpoint));
      address.tls = {};
    }
  }
  return address;
}

namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // a placement of 128 layers x 2048 slots is 1 MB

// What a failed call was over.
struct Connection {
  std::string endpoint;
  absl::Duration timeout;
  bool connected = false;  // the connection came about and stays
  bool plaintext = false;
};

absl::Status TooLate(const Connection& connection) {
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(connection.timeout));
  if (!connection.connected) {
    return absl::UnavailableError(
        absl::StrCat("cannot reach ", connection.endpoint, ": no connection", within));
  }
  return absl::DeadlineExceededError(absl::StrCat("no answer from ", connection.endpoint, within));
}

// What the daemon answers is about the question; these may come from anything that listens there.
bool AboutTheServer(absl::StatusCode code) {
  return code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kResourceExhausted;
}

// What a failure of a call means, in one line.
absl::Status Meaning(const grpc::Status& status, const Connection& connection) {
  absl::Status answer = wire::FromGrpc(status);
  if (absl::IsDeadlineExceeded(answer)) return TooLate(connection);
  if (absl::IsUnavailable(answer) && !connection.connected) {
    return ConnectionError(connection.endpoint, status.error_message(), connection.plaintext);
  }
  // The daemon's own, e.g. that its store is full, comes over a connection that stays.
  const absl::StatusCode code =
      absl::IsUnavailable(answer) ? absl::StatusCode::kUnknown : answer.code();
  if (answer.message().empty()) {
    return {code, absl::StrCat(connection.endpoint, " answers ",
                               absl::StatusCodeToString(answer.code()), " and no message")};
  }
  if (!AboutTheServer(answer.code())) return answer;
  return {code, absl::StrCat(connection.endpoint, ": ", answer.message())};
}

// Whether the channel connects before the deadline; false as soon as the first attempt fails.
bool Connects(grpc::Channel& channel, absl::Duration timeout) {
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
  grpc_connectivity_state state = channel.GetState(true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    if (!channel.WaitForStateChange(state, deadline)) return false;
    state = channel.GetState(true);
  }
  return state == GRPC_CHANNEL_READY;
}

struct Reply {
  absl::Status status;
  bool reached = false;  // the daemon may have taken the question, whatever the status says
};

// One question to one daemon: a channel of its own, and what its failure means.
template <class Service, class Request, class Response>
Reply CallOne(const std::string& endpoint, const wire::TlsFiles& tls, absl::Duration timeout,
              const Request& request, Response* response,
              grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*)) {
  const absl::Time deadline = absl::Now() + timeout;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the daemon is inside the cluster
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials =
      wire::MakeChannelCredentials(tls, &arguments);
  if (!credentials.ok()) return {credentials.status()};
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(endpoint, *credentials, arguments);
  const std::unique_ptr<typename Service::Stub> stub = Service::NewStub(channel);
  const bool reached = Connects(*channel, timeout);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const grpc::Status status = (stub.get()->*method)(&context, request, response);
  if (status.ok()) {
    wire::ClipTexts(response);  // a daemon of another version may send anything
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
    if (leader.empty() || std::find(asked_.begin(), asked_.end(), leader) != asked_.end()) return;
    std::erase(waiting_, leader);
    waiting_.insert(waiting_.begin(), leader);
  }

 private:
  std::vector<std::string> waiting_;
  std::vector<std::string> asked_;
};

// One question to the daemons of the list, until one of them answers that is no standby. While all
// that answer stand by, none leads yet. A change goes no further than the first daemon that may
// have taken it: another one, with a store of its own, would make it a second time.
template <class Service, class Request, class Response>
absl::Status Call(const QueryOptions& options, const Request& request, Response* response,
                  grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Response*)) {
  constexpr absl::Duration kBetweenRounds = absl::Milliseconds(300);
  constexpr bool kChanges = std::is_same_v<Service, v1::Admin>;
  EPLB_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration("--timeout", options.timeout));
  EPLB_ASSIGN_OR_RETURN(const DaemonAddress daemon,
                        ResolveDaemon(options.endpoint, options.tls, options.context));
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> endpoints,
                        wire::SplitEndpoints(daemon.endpoint));
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration left = timeout;
  while (true) {
    absl::Status first;    // that of the first daemon, unless one stands by
    absl::Status standby;  // OK: none
    for (Candidates candidates(endpoints); !candidates.empty();) {
      const std::string endpoint = candidates.Take();
      // A daemon whose host is gone must leave time for the others.
      const absl::Duration share = candidates.empty() ? left : left / 2;
      auto [status, reached] =
          CallOne<Service>(endpoint, daemon.tls, share, request, response, method);
      const std::optional<std::string> leader = wire::LeaderIn(status);
      const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      if (!leader && (!silent || (kChanges && reached))) return status;
      if (leader) {
        candidates.Prefer(*leader);
        standby = absl::UnavailableError(absl::StrCat(endpoint, ": ", status.message()));
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

// None for no loads, and for what cannot be rows of GPUs: an answer's counts are enough to go on.
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

absl::StatusOr<std::vector<EndpointAnswer>> AskEndpoints(const QueryOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseDuration("--timeout", options.timeout));
  EPLB_ASSIGN_OR_RETURN(const DaemonAddress daemon,
                        ResolveDaemon(options.endpoint, options.tls, options.context));
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> endpoints,
                        wire::SplitEndpoints(daemon.endpoint));
  std::vector<EndpointAnswer> answers;
  for (const std::string& endpoint : endpoints) {
    v1::GetStatusResponse response;
    const absl::Status status =
        CallOne<v1::Query>(endpoint, daemon.tls, timeout / static_cast<double>(endpoints.size()),
                           v1::GetStatusRequest(), &response, &v1::Query::Stub::GetStatus)
            .status;
    answers.push_back({endpoint, status, wire::LeaderIn(status), wire::TroubleIn(status)});
  }
  return answers;
}

absl::Status AskStatus(const QueryOptions& options, v1::GetStatusResponse* response) {
  return Call<v1::Query>(options, v1::GetStatusRequest(), response, &v1::Query::Stub::GetStatus);
}

absl::Status Ask(const QueryOptions& options, const v1::GetJobRequest& request,
                 v1::JobStatus* response) {
  return Call<v1::Query>(options, request, response, &v1::Query::Stub::GetJob);
}

absl::Status Ask(const QueryOptions& options, const v1::ListPlansRequest& request,
                 v1::ListPlansResponse* response) {
  return Call<v1::Query>(options, request, response, &v1::Query::Stub::ListPlans);
}

absl::Status Ask(const QueryOptions& options, const v1::GetPlanRequest& request,
                 v1::Plan* response) {
  return Call<v1::Query>(options, request, response, &v1::Query::Stub::GetPlan);
}

absl::Status Ask(const QueryOptions& options, const v1::ListEventsRequest& request,
                 v1::ListEventsResponse* response) {
  return Call<v1::Query>(options, request, response, &v1::Query::Stub::ListEvents);
}

absl::Status Ask(const QueryOptions& options, const v1::ListWindowsRequest& request,
                 v1::ListWindowsResponse* response) {
  return Call<v1::Query>(options, request, response, &v1::Query::Stub::ListWindows);
}

absl::Status Ask(const QueryOptions& options, const v1::RebalanceRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Rebalance);
}

absl::Status Ask(const QueryOptions& options, const v1::PauseRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Pause);
}

absl::Status Ask(const QueryOptions& options, const v1::ResumeRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Resume);
}

absl::Status Ask(const QueryOptions& options, const v1::RollbackRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Rollback);
}

absl::Status Ask(const QueryOptions& options, const v1::SetPolicyRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::SetPolicy);
}

absl::Status Ask(const QueryOptions& options, const v1::ForgetRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Forget);
}

absl::Status Ask(const QueryOptions& options, const v1::PreviewRequest& request,
                 v1::AdminResponse* response) {
  return Call<v1::Admin>(options, request, response, &v1::Admin::Stub::Preview);
}

absl::StatusOr<wire::PlacementBody> AskPlacement(const QueryOptions& options,
                                                 const std::string& job, int64_t version) {
  v1::GetPlacementRequest request;
  request.set_job(job);
  if (version >= 0) request.set_version(static_cast<uint64_t>(version));
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(
      Call<v1::Query>(options, request, &response, &v1::Query::Stub::GetPlacement));
  absl::StatusOr<wire::PlacementBody> body = wire::FromProto(response.placement());
  if (body.ok()) return body;
  return absl::InternalError(
      absl::StrCat("the daemon's answer is no placement: ", body.status().message()));
}

absl::StatusOr<AskedLoad> AskLoad(const QueryOptions& options, const std::string& job) {
  v1::GetLoadRequest request;
  request.set_job(job);
  v1::GetLoadResponse response;
  EPLB_RETURN_IF_ERROR(Call<v1::Query>(options, request, &response, &v1::Query::Stub::GetLoad));
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
  return absl::InternalError(
      absl::StrCat("the daemon's answer is no load: ", message.status().message()));
}

absl::StatusOr<std::string> ChooseJob(const QueryOptions& options, const std::string& job) {
  if (!job.empty()) return job;
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(AskStatus(options, &response));
  if (response.jobs_size() == 1) return response.jobs(0).job();
  if (response.jobs().empty()) {
    return absl::NotFoundError(response.jobs_hidden() ? kNoVisibleJob
                                                      : "the daemon has no job yet");
  }
  constexpr int kMostNamed = 8;
  std::string names;
  for (int i = 0; i < std::min(response.jobs_size(), kMostNamed); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", Printable(response.jobs(i).job()));
  }
  if (response.jobs_size() > kMostNamed) absl::StrAppend(&names, ", ..");
  return InvalidInput("--job is needed: the daemon has ", names);
}

Output QueryFailure(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return Failure(kUsage, status);
    case absl::StatusCode::kUnavailable:
      return Failure(kUnreachable, status);
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return Failure(kDenied, status);
    case absl::StatusCode::kNotFound:
      return Failure(kNotFound, status);
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return Failure(kConflict, status);
    case absl::StatusCode::kDeadlineExceeded:
      return Failure(kTimeout, status);
    default:
      return Failure(kError, status);
  }
}

}  // namespace eplb::cli
