// Runs a command on an agent as if it ran here: go run . TARGET TEXT [SECONDS]
//
// TARGET is unix:///PATH, or HOST:PORT with the files in TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA. Ctrl-C, or SECONDS
// later, ends the command and all that it started. README.md beside this folder says how to make the package telexecv1.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "telexec.example/execute/telexecv1"
)

//go:generate protoc -I ../../../proto --go_out=. --go-grpc_out=. --go_opt=module=telexec.example/execute --go-grpc_opt=module=telexec.example/execute --go_opt=Mtelexec/v1/execution.proto=telexec.example/execute/telexecv1 --go-grpc_opt=Mtelexec/v1/execution.proto=telexec.example/execute/telexecv1 telexec/v1/execution.proto

func main() {
	if len(os.Args) != 3 && len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: execute TARGET TEXT [SECONDS]")
		os.Exit(125)
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(interrupted, os.Args[1], os.Args[2], os.Args[3:])
	if interrupted.Err() != nil {
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "execute:", err)
		switch status.Code(err) {
		case codes.DeadlineExceeded:
			code = 124
		case codes.Unavailable:
			code = 255
		default:
			code = 125
		}
	}
	os.Exit(code)
}

func run(ctx context.Context, target, text string, seconds []string) (int, error) {
	credentials, err := transport(target)
	if err != nil {
		return 0, err
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	if len(seconds) > 0 {
		number, err := strconv.ParseFloat(seconds[0], 64)
		if err != nil {
			return 0, err
		}
		// the agent keeps it too: the command ends also if this program is gone by then
		limited, cancel := context.WithTimeout(ctx, time.Duration(number*float64(time.Second)))
		defer cancel()
		ctx = limited
	}
	// the end of the context, by Ctrl-C or in time, cancels the call
	events, err := pb.NewExecutionServiceClient(connection).Execute(ctx, &pb.ExecuteRequest{Command: text})
	if err != nil {
		return 0, err
	}
	return follow(events)
}

func transport(target string) (credentials.TransportCredentials, error) {
	if strings.HasPrefix(target, "unix:") {
		return insecure.NewCredentials(), nil // the agent asks the kernel who we are
	}
	pair, err := tls.LoadX509KeyPair(os.Getenv("TELEXEC_CERT"), os.Getenv("TELEXEC_KEY"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(os.Getenv("TELEXEC_CA"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("TELEXEC_CA contains no PEM certificate")
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      roots,
		ServerName:   os.Getenv("TELEXEC_SERVER_NAME"), // empty: the target's host
	}), nil
}

// Writes the output where it belongs, and gives the exit code.
func follow(events pb.ExecutionService_ExecuteClient) (int, error) {
	for {
		event, err := events.Recv()
		if err != nil {
			return 0, err
		}
		switch event := event.Event.(type) {
		case *pb.ExecutionEvent_Stdout:
			_, err = os.Stdout.Write(event.Stdout)
		case *pb.ExecutionEvent_Stderr:
			_, err = os.Stderr.Write(event.Stderr)
		case *pb.ExecutionEvent_Exited:
			return exitCode(event.Exited), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// As shells have it, and timeout(1).
func exitCode(exited *pb.Exited) int {
	switch exited.Cause {
	case pb.ExitCause_EXIT_CAUSE_EXITED:
		return int(exited.ExitCode)
	case pb.ExitCause_EXIT_CAUSE_TIMED_OUT, pb.ExitCause_EXIT_CAUSE_DEADLINE_EXCEEDED:
		return 124
	case pb.ExitCause_EXIT_CAUSE_SIGNALED, pb.ExitCause_EXIT_CAUSE_OUT_OF_MEMORY:
		if exited.Signal != 0 {
			return 128 + int(exited.Signal)
		}
	}
	return 255
}
