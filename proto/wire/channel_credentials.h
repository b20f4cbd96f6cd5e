// How a client proves itself to the daemon, and the daemon to it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "base/tls_files.h"

namespace eplb::wire {

// Plaintext when no file is named. The files are read now: a renewed certificate is used by the
// next channel. Also sets the name that the daemon's certificate must hold.
// errors: those of CheckTlsFiles.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files, grpc::ChannelArguments* arguments);

}  // namespace eplb::wire
