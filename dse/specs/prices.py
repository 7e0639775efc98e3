"""Prices of an hour of devices: list prices of clouds by whole instance, those of device files, or a user's own."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hwspecs
from dse.core import files
from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import NUMBER
from dse.specs.device_and_model import HardwareSpec

#: on-demand Linux list prices of whole instances, the cheapest with so many devices
_TABLE = Path(hwspecs.__file__).parent / "prices.csv"


class Offer(NamedTuple):
    """So many devices in one machine, for so much an hour."""

    n_devices: int
    usd_per_hour: float
    #: the cloud's name of the machine
    instance: str = ""


@dataclass(frozen=True)
class Price:
    """The price of one kind of device: of each by itself, or of whole instances, the fewest devices first."""

    offers: tuple[Offer, ...]
    source: str
    is_by_instance: bool = False

    def usd_per_hour(self, n_devices: int, n_servers: int) -> float:
        """USD an hour of `n_servers` servers of `n_devices` each, by the cheapest instances that hold them.

        A server of one instance's devices or fewer lies in one; a larger one takes whole instances.
        """
        if not self.is_by_instance:
            return n_servers * n_devices * self.offers[0].usd_per_hour
        return self._of_instances(n_devices, n_servers)

    def _of_instances(self, n_devices: int, n_servers: int) -> float:
        holds = [(o.n_devices // n_devices, o.usd_per_hour) for o in self.offers if o.n_devices >= n_devices]
        if not holds:  # over the network, by whole instances of the largest kind
            largest = self.offers[-1]
            return n_servers * -(-n_devices // largest.n_devices) * largest.usd_per_hour
        best_n, best_usd = min(holds, key=lambda hold: hold[1] / hold[0])
        # of any `best_n` other instances some hold a multiple of `best_n`: the best kind takes their place
        n_whole = max(n_servers // best_n - max(n for n, _ in holds), 0)
        rest = n_servers - n_whole * best_n
        costs = [0.0]
        for n in range(1, rest + 1):
            costs.append(min(usd + costs[max(n - n_held, 0)] for n_held, usd in holds))
        return n_whole * best_usd + costs[rest]


@cache
def clouds() -> dict[str, dict[str, Price]]:
    """Prices by cloud and device."""
    offers: dict[tuple[str, str], list[Offer]] = {}
    sources: dict[tuple[str, str], str] = {}
    for row in csv.DictReader(io.StringIO(files.read_bytes(_TABLE).decode(), newline="")):
        key = row["cloud"], row["device"]
        offers.setdefault(key, []).append(Offer(int(row["n_devices"]), float(row["usd_per_hour"]), row["instance"]))
        sources[key] = f"list price of {row['cloud']}, {row['region']}, {row['date']}"
    known: dict[str, dict[str, Price]] = {}
    for (cloud, device), listed in offers.items():
        known.setdefault(cloud, {})[device] = Price(tuple(sorted(listed)), sources[cloud, device], True)
    return known


def listed(cloud: str) -> dict[str, Price]:
    """List prices of a cloud by device. Raises InputError for one that is not known."""
    if cloud not in clouds():
        raise InputError(f"cloud = {show(cloud)}: {did_you_mean(cloud, clouds())}")
    return clouds()[cloud]


def own(texts: Iterable[str]) -> dict[str, float]:
    """USD an hour by device, of texts such as h100=2.1. Raises InputError."""
    prices = {}
    for text in texts:
        name, _, number = text.partition("=")
        usd = NUMBER.parse(f"price of {name}", number) if number else math.nan
        if not name.strip() or not 0 < usd < math.inf:
            raise InputError(f"price = {show(text)}: must be a device and USD an hour above 0, such as h100=2.1")
        prices[name.strip().lower()] = float(usd)
    return prices


def prices_of(
    devices: Mapping[str, HardwareSpec], cloud: str | None = None, own_usd: Mapping[str, float] | None = None
) -> dict[str, Price]:
    """The price of each device by the name it was asked by: the user's own, else of the cloud, else of its file.

    Devices that a cloud has no list price of are left out. Raises InputError where it has none of all, for a device
    whose file has no price, and for a price of a device that is not asked for.
    """
    prices = listed(cloud) if cloud is not None else {}
    given = dict(own_usd or {})
    found = {}
    for asked, device in devices.items():
        usd = next((given.pop(name) for name in (asked.lower(), device.name.lower()) if name in given), None)
        if usd is not None:
            found[asked] = Price((Offer(1, usd),), "given")
        elif cloud is not None:
            if device.name.lower() in prices:
                found[asked] = prices[device.name.lower()]
        elif device.usd_per_hour:
            found[asked] = Price((Offer(1, device.usd_per_hour.si),), device.usd_per_hour.source)
        else:
            lists = [name for name, known in clouds().items() if device.name.lower() in known]
            raise InputError(
                f"price: the file of {device.name} has none: add --price {asked}=USD, an hour of a device"
                + (f", or --cloud {lists[0]}" if lists else "")
            )
    if not found and cloud is not None:
        names, some = ", ".join(devices), next(iter(devices))
        known = ", ".join(prices)
        raise InputError(f"cloud = {cloud}: has no list price of {names} here (of {known}): add --price {some}=USD")
    if given:
        name = next(iter(given))
        raise InputError(f"price = {name}={given[name]:g}: no such device is compared: {did_you_mean(name, devices)}")
    return found
