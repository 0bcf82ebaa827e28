"""FedTU around Flower's stock FedAdam, with a ClientApp of one's own: least squares on four clients.

Ten records of client 3 are wrong. In round 6 it asks to forget them.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam

from oblivionis import FedTU, RequestList, UnlearnRequest, simulated_clients

TRUTH = np.array([1.0, -2.0, 0.5])
client = ClientApp()


@client.query()
def who(message: Message, context: Context) -> Message:
    here = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"metrics": here}), reply_to=message)


@client.train()
@client.train("unlearn")
def fit(message: Message, context: Context) -> Message:
    here = int(context.node_config["partition-id"])
    x = np.random.default_rng(here).normal(size=(50, 3))
    y = x @ TRUTH + np.where(np.arange(50) < 10, 20.0, 0.0) * (here == 3)
    gone = context.state.config_records.setdefault("gone", ConfigRecord())
    if isinstance(asked := message.content.config_records["config"].get("record-ids"), list):  # unlearn
        gone.update({str(record): True for record in asked})
    keep = [i for i in range(50) if f"{here}-{i}" not in gone]
    weights = message.content.array_records["arrays"]["weights"].numpy()
    for _ in range(20):
        weights = weights - 0.2 * x[keep].T @ (x[keep] @ weights - y[keep]) / len(keep)
    arrays, metrics = ArrayRecord({"weights": Array(weights)}), MetricRecord({"num-examples": len(keep)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    distance = float(np.linalg.norm(arrays["weights"].numpy() - TRUTH))
    print(f"round {server_round}: {distance:.2f} from the truth")
    return MetricRecord({"distance": distance})


def main() -> None:
    wrong = UnlearnRequest("wrong-sensor", node=3, record_ids=tuple(f"3-{i}" for i in range(10)))
    requests = RequestList([(6, wrong)])
    strategy = FedTU(FedAdam(eta=0.5, beta_1=0.5, beta_2=0.9, fraction_evaluate=0.0), requests=requests)
    with simulated_clients("fedtu_fedadam:client", 4) as grid:
        strategy.start(grid, ArrayRecord({"weights": Array(np.zeros(3))}), num_rounds=12, evaluate_fn=evaluate)
    print(f"request served in round {requests.served_in['wrong-sensor']}")


if __name__ == "__main__":
    main()
