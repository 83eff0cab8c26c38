"""HTTP below the routes: the server's protocol, what every request passes, bodies and the images in them, errors."""
