/* UCX connects by socket address (ucp_listener_create, ucp_ep_create), through librdmacm. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

#define TAG 7
#define SIZE 100000

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h accepted;
static int failed, peer_has_closed;

static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		printf("%s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg;
	(void)ep;
	if (status == UCS_ERR_CONNECTION_RESET) {
		peer_has_closed = 1;
		return;
	}
	printf("endpoint: %s\n", ucs_status_string(status));
	failed = 1;
}

static ucp_ep_h new_endpoint(ucp_ep_params_t *params)
{
	ucp_ep_h ep;
	params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
	params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
	params->err_handler.cb = on_error;
	must(ucp_ep_create(worker, params, &ep), "ucp_ep_create");
	return ep;
}

static void on_request(ucp_conn_request_h request, void *arg)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request };
	(void)arg;
	accepted = new_endpoint(&params);
}

/* Waits until a request completes. */
static void complete(ucs_status_ptr_t request, const char *what)
{
	ucs_status_t status = UCS_OK;
	if (UCS_PTR_IS_ERR(request))
		must(UCS_PTR_STATUS(request), what);
	if (!request)
		return;
	do {
		ucp_worker_progress(worker);
		status = ucp_request_check_status(request);
	} while (status == UCS_INPROGRESS);
	ucp_request_free(request);
	must(status, what);
}

static unsigned char byte_of(int round, size_t index)
{
	return (unsigned char)(index * 31 + round);
}

static void send_all(ucp_ep_h ep, int round)
{
	static unsigned char data[SIZE];
	ucp_request_param_t param = { .op_attr_mask = 0 };
	size_t i;
	for (i = 0; i < SIZE; i++)
		data[i] = byte_of(round, i);
	complete(ucp_tag_send_nbx(ep, data, SIZE, TAG, &param), "send");
}

static void receive_all(int round)
{
	static unsigned char data[SIZE];
	ucp_request_param_t param = { .op_attr_mask = 0 };
	size_t i;
	memset(data, 0, SIZE);
	complete(ucp_tag_recv_nbx(worker, data, SIZE, TAG, -1, &param), "receive");
	for (i = 0; i < SIZE; i++)
		if (data[i] != byte_of(round, i)) {
			printf("byte %zu of round %d is wrong\n", i, round);
			exit(1);
		}
}

/* ucp SIDE ADDRESS PORT */
int main(int argc, char **argv)
{
	int is_server = argc == 4 && !strcmp(argv[1], "server"), round;
	struct sockaddr_in address = { .sin_family = AF_INET };
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_request_param_t flush = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };
	ucp_request_param_t none = { .op_attr_mask = 0 };
	ucp_listener_h listener = NULL;
	ucp_config_t *config;
	ucp_ep_h ep;

	if (argc != 4)
		return 2;
	alarm(250);
	setvbuf(stdout, NULL, _IOLBF, 0);
	inet_pton(AF_INET, argv[2], &address.sin_addr);
	address.sin_port = htons(atoi(argv[3]));
	must(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	must(ucp_init(&params, config, &context), "ucp_init");
	ucp_config_release(config);
	must(ucp_worker_create(context, &of_worker, &worker), "ucp_worker_create");
	if (is_server) {
		ucp_listener_params_t on = { .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER };
		on.sockaddr.addr = (struct sockaddr *)&address;
		on.sockaddr.addrlen = sizeof address;
		on.conn_handler.cb = on_request;
		must(ucp_listener_create(worker, &on, &listener), "ucp_listener_create");
		while (!accepted)
			ucp_worker_progress(worker);
		ep = accepted;
	} else {
		ucp_ep_params_t to = { .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR };
		to.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		to.sockaddr.addr = (struct sockaddr *)&address;
		to.sockaddr.addrlen = sizeof address;
		ep = new_endpoint(&to);
	}
	for (round = 0; round < 10 && !failed; round++) {
		/* The server does not flush after the last round: a flush may send, and the client may have closed by then. */
		if (round > 0)
			complete(ucp_ep_flush_nbx(ep, &none), "flush");
		if (is_server) {
			receive_all(round);
			send_all(ep, round + 100);
		} else {
			send_all(ep, round);
			receive_all(round + 100);
		}
	}
	/* The client closes after the server has received its last message; the server closes after the client has closed. */
	if (is_server) {
		unsigned char end;
		ucp_tag_recv_info_t info;
		while (!ucp_tag_probe_nb(worker, TAG + 1, -1, 0, &info))
			ucp_worker_progress(worker);
		complete(ucp_tag_recv_nbx(worker, &end, 1, TAG + 1, -1, &none), "end");
		/* The client's flush may have sent more. */
		while (!peer_has_closed && !failed)
			ucp_worker_progress(worker);
	} else {
		complete(ucp_tag_send_nbx(ep, "e", 1, TAG + 1, &none), "end");
		complete(ucp_ep_flush_nbx(ep, &none), "flush");
	}
	complete(ucp_ep_close_nbx(ep, &flush), "close");
	if (listener)
		ucp_listener_destroy(listener);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	printf(failed ? "failed\n" : "done\n");
	return failed;
}
