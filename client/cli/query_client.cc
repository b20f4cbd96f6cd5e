#include "client/cli/query_client.h"

#include <chrono>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include "client/cli/endpoint.h"
#include "placement/status_macros.h"
#include "proto/wire/channel_credentials.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb::cli {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // a placement of 128 layers x 2048 slots is 1 MB

absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text) {
  absl::Duration timeout;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    timeout = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &timeout)) {
    timeout = absl::ZeroDuration();
  }
  if (timeout > absl::ZeroDuration() && timeout <= absl::Hours(1)) return timeout;
  return absl::InvalidArgumentError(
      absl::StrCat("--timeout is \"", text, "\", expected e.g. 5s or 500ms, at most 1h"));
}

// One question: a channel of its own, and what its failure means.
template <class Request, class Response>
absl::Status Ask(const QueryOptions& options, const Request& request, Response* response,
                 grpc::Status (v1::Query::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Response*)) {
  EPLB_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(options.timeout));
  EPLB_ASSIGN_OR_RETURN(const std::string endpoint, ResolveEndpoint(options.endpoint));
  const wire::TlsFiles tls = wire::WithEnvironment(options.tls);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the daemon is inside the cluster
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                        wire::MakeChannelCredentials(tls, &arguments));
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(endpoint, credentials, arguments);
  const std::unique_ptr<v1::Query::Stub> stub = v1::Query::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  const grpc::Status status = (stub.get()->*method)(&context, request, response);
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    // All that gRPC says of a daemon that wants TLS is that it hung up.
    const bool perhaps_tls = tls.ca.empty() && absl::EndsWith(status.error_message(), "closed");
    return absl::UnavailableError(absl::StrCat(
        "cannot reach ", endpoint, ": ", status.error_message(),
        perhaps_tls ? "; does it want TLS? see --tls-ca, --tls-cert and --tls-key" : ""));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    const std::string within = absl::StrCat(" within ", absl::FormatDuration(timeout));
    if (channel->GetState(false) != GRPC_CHANNEL_READY) {
      return absl::UnavailableError(
          absl::StrCat("cannot reach ", endpoint, ": no connection", within));
    }
    return absl::DeadlineExceededError(absl::StrCat("no answer from ", endpoint, within));
  }
  return wire::FromGrpc(status);
}

}  // namespace

absl::Status AskStatus(const QueryOptions& options, v1::GetStatusResponse* response) {
  return Ask(options, v1::GetStatusRequest(), response, &v1::Query::Stub::GetStatus);
}

absl::Status AskPlacement(const QueryOptions& options, const std::string& job,
                          v1::GetPlacementResponse* response) {
  v1::GetPlacementRequest request;
  request.set_job(job);
  return Ask(options, request, response, &v1::Query::Stub::GetPlacement);
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
