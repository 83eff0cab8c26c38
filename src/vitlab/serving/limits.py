"""What a stranger may ask of the service, and how long the service waits for them."""

from dataclasses import dataclass

from vitlab.core.errors import ConfigError

MEGABYTE = 1_000_000
# What Pillow and simplejpeg decode here, by Pillow's names. TIFF, PSD, JPEG 2000 and the other formats that `vitlab
# predict` reads are left out: more code that strangers could reach, for files that browsers do not show.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on a request, on a connection, and on all of them together."""

    body_bytes: int = 10 * MEGABYTE
    head_bytes: int = 16_384  # request line and header fields
    images: int = 16  # in one request
    pixels: int = 40_000_000  # of one image, read off its header before it is decoded
    request_pixels: int = 200_000_000  # of all images of a request; sixteen of a phone have 192 million
    scans: int = 100  # of a progressive JPEG, and fewer of a large one: each is a pass over all pixels in a few bytes
    formats: tuple[str, ...] = FORMATS
    attention_values: int = 1_000_000  # numbers in one answer

    receive_seconds: float = 15.0  # for the head of a request to arrive, and again for its body
    write_seconds: float = 15.0  # for a reader that does not take its answer
    linger_seconds: float = 2.0  # a sender that was refused is read for so long, else a reset may eat the refusal
    idle_seconds: float = 5.0  # between two requests of a connection
    drain_seconds: float = 30.0  # for what was accepted when the service is asked to end

    connections: int = 256
    buffered_bytes: int = 256 * MEGABYTE  # of bodies that are being received or decoded, all together
    queue: int = 128  # images that are being decoded or wait for the model, all together

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "formats" and value <= 0:
                raise ConfigError(f"The limit {name} must be above 0, not {value}.")
        unknown = sorted(set(self.formats) - set(FORMATS))
        if unknown or not self.formats:
            named = f"'{unknown[0]}'" if unknown else "none"
            raise ConfigError(f"The formats that can be served are {', '.join(FORMATS)}, not {named}.")
        if self.images > self.queue:
            raise ConfigError(
                f"A request may bring {self.images} images but the queue holds {self.queue}: raise queue."
            )
        if self.pixels > self.request_pixels:
            raise ConfigError(
                f"An image may have {self.pixels} pixels but a request {self.request_pixels}: raise request_pixels."
            )
        if self.body_bytes > self.buffered_bytes:
            raise ConfigError(
                f"A body may have {self.body_bytes} bytes but all together {self.buffered_bytes}: raise buffered_bytes."
            )
